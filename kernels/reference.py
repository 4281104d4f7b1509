"""Reference linear operators in torch, computing from packed codes.

Numerics, which every other implementation is held to: int8 activations with one scale per 32 along
K; inside a block of weights an exact integer dot product; times weight scale, times activation
scale, summed in float32; times the tensor's global scale. Decoded weights are temporaries.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.kernels.registry import register
from wmrt.quant.activations import GROUP, quantize_groups
from wmrt.quant.formats import decode_scales, pair_table, split
from wmrt.quant.tensor import QuantizedTensor


def _check(x: Tensor, columns: int) -> None:
    if x.shape[-1] != columns or not x.is_floating_point():
        raise QuantizationError(
            f"this linear takes float [..., {columns}], got {x.dtype} {list(x.shape)}"
        )


@register("nvfp4", "int8-g32", "reference")
@register("mxfp4", "int8-g32", "reference")
@register("int4-g128", "int8-g32", "reference")
def linear_a8(x: Tensor, weight: QuantizedTensor) -> Tensor:
    """float[..., K] times packed [N, K] -> float32[..., N], activations quantized to int8."""
    rows, columns = weight.shape
    _check(x, columns)
    spec = weight.spec
    step = min(spec.block, GROUP)
    flat = x.reshape(-1, columns).float()
    codes, scales = quantize_groups(flat, padded_to=max(spec.block, GROUP))
    width = weight.codes.shape[1] * 2
    values = pair_table(spec.levels, x.device)[weight.codes.long()].view(rows, -1, step)
    blocks = split(codes[:, :width], step)
    dots = torch.einsum("bgk,ngk->bng", blocks, values)
    weight_scales = decode_scales(weight.scales, spec).repeat_interleave(spec.block // step, 1)
    group_scales = scales.repeat_interleave(GROUP // step, 1)[:, : width // step]
    total = (dots * weight_scales * group_scales.unsqueeze(1)).sum(-1)
    return (total * weight.global_scale).view(*x.shape[:-1], rows)


@register("nvfp4", "bf16", "reference")
@register("mxfp4", "bf16", "reference")
def linear_a16(x: Tensor, weight: QuantizedTensor) -> Tensor:
    """float[..., K] rounded to bfloat16, times packed [N, K] -> float32[..., N]."""
    _check(x, weight.shape[1])
    return F.linear(x.to(torch.bfloat16).float(), weight.dequantize())


@register("bf16", "bf16", "reference")
def linear_bf16(x: Tensor, weight: Tensor) -> Tensor:
    """float[..., K] rounded to bfloat16, times bfloat16 [N, K] -> float32[..., N]."""
    _check(x, weight.shape[1])
    return F.linear(x.to(torch.bfloat16).float(), weight.float())
