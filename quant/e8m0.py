"""E8M0: a power of two in one byte, the scale of an OCP Microscaling block (specification 1.0)."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.elements import lookup

E8M0_RULES = ("even", "floor", "rceil", "ceil")


def encode_e8m0(amax: Tensor, rule: str = "even") -> Tensor:
    """Largest magnitude of each block (float32) -> E8M0 bit pattern (uint8) of the shared scale.

    Rules, with 2^2 the exponent of E2M1's largest value:

    * ``floor``: floor(log2 amax) - 2 (OCP Microscaling 1.0, section 6.3)
    * ``even``: the same after rounding amax up to the next power of two from mantissa 1.75 on
    * ``rceil``: ceil(log2(amax / 6)), so that nothing saturates
    * ``ceil``: ceil(log2 amax) - 2

    `rules.Rules.mx_scale` says why ``even`` is the default. Exponents come from the bits: log2 in
    floating point is off by one just above 6 x 2^k. A block of zeros gets 0x00, the smallest scale
    (E8M0 has no zero). Non-finite input raises `QuantizationError`.
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


def decode_e8m0(codes: Tensor) -> Tensor:
    """E8M0 bit patterns (uint8) -> float32 2^(code - 127), exact; 0xFF is NaN."""
    return lookup(e8m0_table(codes.device), codes)


@functools.cache
def e8m0_table(device: torch.device) -> Tensor:
    """float32[256]: the value of each E8M0 byte."""
    bits = torch.arange(256, dtype=torch.int32, device=device) << 23
    bits[0] = 0x400000  # 2^-127, a float32 subnormal
    bits[255] = 0x7FC00000
    return bits.view(torch.float32)
