"""Low-bit number formats: exact encoding and decoding, written out in integers.

Formats follow the OCP Microscaling specification 1.0 (E2M1, E8M0, the block of 32), the OFP8
specification (E4M3 without infinities) and NVIDIA's NVFP4 (block of 16, E4M3 scale, FP32 global).
Nothing here relies on a cast to an 8-bit float: whether one saturates differs between versions.

Two elements share one byte; the even element sits in the low nibble.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_LEVELS = E2M1_VALUES + tuple(-value for value in E2M1_VALUES)
INT4_LEVELS = tuple(float(code - 8) for code in range(16))
E2M1_MAX = 6.0
E4M3_MAX = 448.0
NVFP4_SPAN = E2M1_MAX * E4M3_MAX  # 2688: the tensor's largest magnitude maps to 6 x 448
E8M0_RULES = ("even", "floor", "rceil", "ceil")


@dataclass(frozen=True)
class BlockFormat:
    """A 4-bit weight format: 16 levels, and one scale per `block` elements along K."""

    name: str
    block: int
    levels: tuple[float, ...]
    scale: str
    scale_dtype: torch.dtype
    has_global: bool

    @property
    def zero_code(self) -> int:
        """The nibble that means zero (E2M1 0, INT4 stored as q + 8)."""
        return self.levels.index(0.0)


FORMATS = {
    "nvfp4": BlockFormat("nvfp4", 16, E2M1_LEVELS, "e4m3", torch.uint8, True),
    "mxfp4": BlockFormat("mxfp4", 32, E2M1_LEVELS, "e8m0", torch.uint8, False),
    "int4-g128": BlockFormat("int4-g128", 128, INT4_LEVELS, "fp16", torch.float16, False),
}


def block_format(name: str) -> BlockFormat:
    """The format called `name`; `QuantizationError` lists the names that exist."""
    if name not in FORMATS:
        raise QuantizationError(f"unknown weight format {name!r}; formats are {', '.join(FORMATS)}")
    return FORMATS[name]


def _refuse_nan(x: Tensor, what: str) -> None:
    if bool(torch.isnan(x).any()):
        raise QuantizationError(f"{what} cannot represent NaN; the input holds at least one")


def encode_e2m1(x: Tensor) -> Tensor:
    """Float -> E2M1 codes (uint8, 0..15): nearest even, saturating at +-6, the sign of 0 kept.

    Raises `QuantizationError` for NaN, which the format cannot hold.
    """
    _refuse_nan(x, "E2M1")
    size = x.abs()
    # Counting passed midpoints gives the index. At a midpoint the even code wins: it is passed only
    # where the code above it is the even one.
    code = (size > 0.25).to(torch.uint8)
    code += size >= 0.75
    code += size > 1.25
    code += size >= 1.75
    code += size > 2.5
    code += size >= 3.5
    code += size > 5.0
    return code | (torch.signbit(x).to(torch.uint8) << 3)


def decode_e2m1(codes: Tensor) -> Tensor:
    """E2M1 codes (uint8, 0..15) -> float32, exact."""
    return level_table(E2M1_LEVELS, codes.device)[codes.long()]


def encode_e4m3(x: Tensor) -> Tensor:
    """Float32 -> E4M3 bit patterns (uint8): nearest even, saturating at +-448, NaN -> 0x7F.

    Infinity saturates as every value above 448 does.
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
    code = torch.where(size > 0x7F800000, torch.full_like(code, 0x7F), code)
    return (code | sign).to(torch.uint8)


def decode_e4m3(codes: Tensor) -> Tensor:
    """E4M3 bit patterns (uint8) -> float32, exact; 0x7F and 0xFF are NaN."""
    return scale_table("e4m3", codes.device)[codes.long()]


def decode_e8m0(codes: Tensor) -> Tensor:
    """E8M0 bit patterns (uint8) -> float32 2^(code - 127), exact; 0xFF is NaN."""
    return scale_table("e8m0", codes.device)[codes.long()]


def encode_e8m0(amax: Tensor, rule: str = "even") -> Tensor:
    """Largest magnitude of each block (float32) -> E8M0 bit pattern (uint8) of the shared scale.

    Rules, with 2^2 the exponent of E2M1's largest value:

    * ``floor``: floor(log2 amax) - 2 (OCP Microscaling 1.0, section 6.3)
    * ``even``: the same after rounding amax up to the next power of two from mantissa 1.75 on
    * ``rceil``: ceil(log2(amax / 6)), so that nothing saturates
    * ``ceil``: ceil(log2 amax) - 2

    ``even`` is the default: of the four it has the lowest error on Gaussian weights (RMSE .002237;
    floor .002257, rceil .002414, ceil .002704) and on weights with outliers (.0057; floor .0094),
    and compressed-tensors writes it. Exponents come from the bits: log2 in floating point is off by
    one just above 6 x 2^k. A block of zeros gets 0x00. Non-finite input raises `QuantizationError`.
    """
    if rule not in E8M0_RULES:
        raise QuantizationError(f"unknown E8M0 rule {rule!r}; rules are {', '.join(E8M0_RULES)}")
    if not bool(torch.isfinite(amax).all()):
        raise QuantizationError("an E8M0 scale needs finite block maxima; got NaN or infinity")
    bits = amax.to(torch.float32).abs().view(torch.int32)
    mantissa = bits & 0x7FFFFF
    exponent = bits >> 23
    if rule == "even":
        exponent = (bits + 0x200000) >> 23
    elif rule == "rceil":
        exponent = exponent + (mantissa > 0x400000)
    elif rule == "ceil":
        exponent = exponent + (mantissa > 0)
    # Biased by 127 on both sides, so "- 2" is all that is left; float32 subnormals land on 0x00.
    return (exponent - 2).clamp(0, 254).to(torch.uint8)


def encode_int4(x: Tensor) -> Tensor:
    """Float -> INT4 codes (uint8, q + 8): nearest even, clamped to [-8, 7].

    Raises `QuantizationError` for NaN, which the format cannot hold.
    """
    _refuse_nan(x, "INT4")
    return (torch.round(x).clamp(-8, 7) + 8).to(torch.uint8)


def decode_int4(codes: Tensor) -> Tensor:
    """INT4 codes (uint8, q + 8) -> float32 q, exact."""
    return codes.to(torch.float32) - 8.0


def split(x: Tensor, size: int) -> Tensor:
    """[..., K] -> [..., K/size, size]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def pack_nibbles(codes: Tensor) -> Tensor:
    """uint8[..., K] of 4-bit codes, K even -> uint8[..., K/2], even element in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """uint8[..., K/2] -> uint8[..., K]; inverse of `pack_nibbles`."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


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
def scale_table(kind: str, device: torch.device) -> Tensor:
    """float32[256]: the value of each scale byte of kind ``e4m3`` or ``e8m0``."""
    byte = torch.arange(256, dtype=torch.int32, device=device)
    if kind == "e8m0":
        bits = byte << 23
        bits[0] = 0x400000  # 2^-127, a float32 subnormal
        bits[255] = 0x7FC00000
        return bits.view(torch.float32)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    normal = (((exponent + 120) << 23) | (mantissa << 20)).view(torch.float32)
    value = torch.where(exponent > 0, normal, mantissa.to(torch.float32) / 512.0)
    value = torch.where((byte & 0x7F) == 0x7F, torch.full_like(value, torch.nan), value)
    return torch.where(byte >= 128, -value, value)


def decode_scales(scales: Tensor, fmt: BlockFormat) -> Tensor:
    """Stored scales of `fmt` -> float32 of the same shape, exact."""
    if fmt.scale == "fp16":
        return scales.to(torch.float32)
    table = scale_table(fmt.scale, scales.device)
    return torch.index_select(table, 0, scales.reshape(-1).int()).view(scales.shape)
