"""Single numbers in 4 and 8 bits: E2M1, E4M3, INT4 and INT8, encoded and decoded in integers.

E2M1 follows the OCP Microscaling specification 1.0, E4M3 the OFP8 specification (no infinities).
Nothing here relies on a cast to a narrow float: whether one saturates differs between versions.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_LEVELS = E2M1_VALUES + tuple(-value for value in E2M1_VALUES)
INT4_LEVELS = tuple(float(code - 8) for code in range(16))
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_NAN = 0x7F  # and 0xFF

E2M1_TIES = ("even", "zero")
INT4_TIES = ("even", "up")


def _refuse_nan(x: Tensor, what: str) -> None:
    if bool(torch.isnan(x).any()):
        raise QuantizationError(f"{what} cannot represent NaN; the input holds at least one")


def _refuse_ties(ties: str, allowed: tuple[str, ...]) -> None:
    if ties not in allowed:
        raise QuantizationError(f"unknown rule for ties {ties!r}; use {' or '.join(allowed)}")


def encode_e2m1(x: Tensor, ties: str = "even") -> Tensor:
    """Float -> E2M1 codes (uint8, 0..15): nearest, saturating at +-6, the sign of 0 kept.

    A value halfway between two levels goes to the even code, or with ``zero`` to the smaller
    magnitude. Raises `QuantizationError` for NaN, which the format cannot hold.
    """
    _refuse_nan(x, "E2M1")
    _refuse_ties(ties, E2M1_TIES)
    size = x.abs()
    # Counting passed midpoints gives the index. At a midpoint the even code wins: it is passed only
    # where the code above it is the even one.
    reach = torch.ge if ties == "even" else torch.gt
    code = (size > 0.25).to(torch.uint8)
    code += reach(size, 0.75)
    code += size > 1.25
    code += reach(size, 1.75)
    code += size > 2.5
    code += reach(size, 3.5)
    code += size > 5.0
    return code | (torch.signbit(x).to(torch.uint8) << 3)


def decode_e2m1(codes: Tensor) -> Tensor:
    """E2M1 codes (uint8, 0..15) -> float32, exact."""
    return level_table(E2M1_LEVELS, codes.device)[codes.long()]


def encode_e4m3(x: Tensor) -> Tensor:
    """Float32 -> E4M3 bit patterns (uint8): nearest even, saturating at +-448, NaN -> 0x7F.

    Infinity saturates as every value above 448 does; the sign is kept, that of 0 and NaN too.
    """
    bits = x.to(torch.float32).view(torch.int32)
    size = bits & 0x7FFFFFFF
    sign = ((bits >> 31) & 1) << 7
    # Keep 3 of 23 mantissa bits, half to even; re-bias the exponent from 127 to 7.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 the step is 2^-9. The product is exact and torch.round is half to even; the largest
    # result, 8, is the pattern of 2^-6 itself.
    small = torch.round(size.view(torch.float32).clamp(max=1.0) * 512.0).to(torch.int32)
    code = torch.where(size < (121 << 23), small, normal).clamp(max=0x7E)
    code = torch.where(size > 0x7F800000, torch.full_like(code, E4M3_NAN), code)
    return (code | sign).to(torch.uint8)


def decode_e4m3(codes: Tensor) -> Tensor:
    """E4M3 bit patterns (uint8) -> float32, exact; 0x7F and 0xFF are NaN."""
    return lookup(e4m3_table(codes.device), codes)


def encode_int4(x: Tensor, ties: str = "even") -> Tensor:
    """Float -> INT4 codes (uint8, q + 8): nearest, clamped to [-8, 7].

    Halves go to the even integer, or with ``up`` to the larger one, as floor(x + 8.5) does in
    float32. Raises `QuantizationError` for NaN, which the format cannot hold.
    """
    _refuse_nan(x, "INT4")
    _refuse_ties(ties, INT4_TIES)
    raised = torch.floor(x + 8.5) if ties == "up" else torch.round(x) + 8
    return raised.clamp(0, 15).to(torch.uint8)


def decode_int4(codes: Tensor) -> Tensor:
    """INT4 codes (uint8, q + 8) -> float32 q, exact."""
    return codes.to(torch.float32) - 8.0


def encode_int8(x: Tensor, lowest: int = -127) -> Tensor:
    """Float -> INT8 (two's complement in uint8): nearest even, clamped to [lowest, 127].

    Raises `QuantizationError` for NaN, which the format cannot hold.
    """
    _refuse_nan(x, "INT8")
    return torch.round(x).clamp(lowest, 127).to(torch.int8).view(torch.uint8)


def decode_int8(codes: Tensor) -> Tensor:
    """INT8 (two's complement in uint8) -> float32, exact."""
    return codes.view(torch.int8).to(torch.float32)


def lookup(table: Tensor, codes: Tensor) -> Tensor:
    """table[codes] for uint8 codes of any shape; indexing by int64 takes twice as long."""
    return torch.index_select(table, 0, codes.reshape(-1).int()).view(codes.shape)


@functools.cache
def level_table(levels: tuple[float, ...], device: torch.device) -> Tensor:
    """float32[16]: the value of each 4-bit code."""
    return torch.tensor(levels, dtype=torch.float32, device=device)


@functools.cache
def level_pairs(levels: tuple[float, ...], device: torch.device) -> Tensor:
    """int64[256]: for each packed byte, the bits of its two float32 values, even element first.

    One entry moves as a unit; view the result as float32.
    """
    byte = torch.arange(256, device=device)
    table = level_table(levels, device)
    pairs = torch.stack((table[byte & 15], table[byte >> 4]), dim=-1).contiguous()
    return pairs.view(torch.int64).view(256)


@functools.cache
def e4m3_table(device: torch.device) -> Tensor:
    """float32[256]: the value of each E4M3 byte."""
    byte = torch.arange(256, dtype=torch.int32, device=device)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    normal = (((exponent + 120) << 23) | (mantissa << 20)).view(torch.float32)
    value = torch.where(exponent > 0, normal, mantissa.to(torch.float32) / 512.0)
    value = torch.where((byte & 0x7F) == E4M3_NAN, torch.full_like(value, torch.nan), value)
    return torch.where(byte >= 128, -value, value)
