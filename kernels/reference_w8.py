"""Reference linear operators in torch for 8-bit weights with 8-bit activations.

Numerics, which every other implementation is held to: activations with one scale per token; the
whole row's dot product of codes, exact; rounded to float32 once; times the row's scale, times the
token's. The dot product is formed in float64, where it is exact in any order: an E4M3 product is a
multiple of 2^-18 below 2^18, so K up to 2^17 of them sum below 2^53 units; int8 allows more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wmrt.kernels.reference import SLICE, checked, joined, slices
from wmrt.kernels.registry import register
from wmrt.quant.activations import quantize_tokens
from wmrt.quant.formats import decode_codes, decode_scales
from wmrt.quant.tensor import QuantizedTensor


def _linear_w8a8(x: Tensor, weight: QuantizedTensor, activation: str) -> Tensor:
    rows, columns = weight.shape
    codes, scales = quantize_tokens(checked(x, columns), activation)
    wide, parts = codes.double(), []
    for part in slices(weight.codes, max(1, SLICE // columns)):
        parts.append(torch.mm(wide, decode_codes(part, weight.spec).double().t()).float())
    row_scales = decode_scales(weight.scales, weight.spec).t()  # [1, N] or [1, 1]
    return joined(parts).mul_(row_scales).mul_(scales).view(*x.shape[:-1], rows)


@register("fp8-channel", "fp8-token", "reference")
@register("fp8-tensor", "fp8-token", "reference")
def linear_fp8(x: Tensor, weight: QuantizedTensor) -> Tensor:
    """float[..., K] times E4M3 [N, K] -> float32[..., N], activations E4M3 with one scale a token.

    A row of x with NaN or infinity gives a row of NaN.
    """
    return _linear_w8a8(x, weight, "fp8-token")


@register("int8-channel", "int8-token", "reference")
def linear_int8(x: Tensor, weight: QuantizedTensor) -> Tensor:
    """float[..., K] times INT8 [N, K] -> float32[..., N], activations int8 with one scale a token.

    A row of x with NaN or infinity gives a row of NaN.
    """
    return _linear_w8a8(x, weight, "int8-token")
