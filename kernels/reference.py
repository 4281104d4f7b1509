"""Reference linear operators in torch for 4-bit and bf16 weights, computing from packed codes.

Numerics, which every other implementation is held to: int8 activations with one scale per 32 along
K; inside a block of weights an exact integer dot product; times the weight scale, times the
activation scale, summed over blocks in float32 (`_fold` gives the order); times the tensor's global
scale. Weights are decoded a slice of rows at a time into a temporary: no second copy of them
outlives the call.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.kernels.registry import register
from wmrt.quant.activations import GROUP, quantize_groups
from wmrt.quant.formats import FORMATS, BlockFormat, decode_codes, decode_scales, split
from wmrt.quant.tensor import QuantizedTensor

# Weights decoded at once: 1 MiB in float32, about what a level-2 cache holds.
SLICE = 1 << 18
# Block sums held at once when many rows of x share one decoded slice: 16 MiB.
SUMS = 1 << 22


def checked(x: Tensor, columns: int) -> Tensor:
    """x[..., K] as [B, K]."""
    if x.shape[-1] != columns or not x.is_floating_point():
        raise QuantizationError(
            f"this linear takes float [..., {columns}], got {x.dtype} {list(x.shape)}"
        )
    return x.reshape(-1, columns)


def _height(columns: int, batch: int = 1) -> int:
    """Rows in a slice, such that decoded weights and block sums stay within their limits."""
    return max(1, min(SLICE // columns, SUMS // max(1, batch * columns // 16)))


def slices(rows: Tensor, height: int) -> list[Tensor]:
    """Views of at most `height` rows each. Not `split`: that takes 9 us even to give back one."""
    if len(rows) <= height:
        return [rows]
    return [rows[start : start + height] for start in range(0, len(rows), height)]


def joined(parts: list[Tensor]) -> Tensor:
    """The results of all slices, [B, N]."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _shifted(codes: Tensor, zero_points: Tensor | None, spec: BlockFormat) -> Tensor:
    """uint8[R, K'/2] -> float32[R, K'] of level values, less those of the blocks' zero points.

    Integers within +-15 for int4: times int8 and summed over 32 they stay below 2^16, exact.
    """
    values = decode_codes(codes, spec)
    if zero_points is None:
        return values
    zeros = zero_points.float().sub_(spec.zero_code).unsqueeze(-1)
    return split(values, spec.block).sub_(zeros).flatten(-2)


def _fold(terms: Tensor) -> Tensor:
    """Sum of terms[n, ...] over n in float32, in place: the last n//2 onto the first, and again.

    A fixed order, unlike torch.sum's, which depends on shape and position. With exact dot products
    it makes results the same bits for every batch size, slice and number of threads.
    """
    count = terms.shape[0]
    while count > 1:
        half = count // 2
        terms.narrow(0, 0, half).add_(terms.narrow(0, count - half, half))
        count -= half
    return terms[0]


def _whole_groups(weight: QuantizedTensor) -> tuple[Tensor, Tensor]:
    """Codes and scales, with a block of zeros added where blocks of 16 leave half a group of 32."""
    spec = weight.spec
    short = -weight.scales.shape[1] % (GROUP // spec.block) if spec.block < GROUP else 0
    if not short:
        return weight.codes, weight.scales
    return F.pad(weight.codes, (0, short * spec.block // 2)), F.pad(weight.scales, (0, short))


def linear_a8(x: Tensor, weight: QuantizedTensor) -> Tensor:
    """float[..., K] times packed [N, K] -> float32[..., N], activations quantized to int8.

    A row of x with NaN or infinity gives a row of NaN.
    """
    flat, spec = checked(x, weight.shape[1]).float(), weight.spec
    codes, scales = quantize_groups(flat, padded_to=max(spec.block, GROUP))
    return dots_a8(codes, scales, weight).view(*x.shape[:-1], weight.shape[0])


def dots_a8(codes: Tensor, scales: Tensor, weight: QuantizedTensor) -> Tensor:
    """Activations as `quantize_groups` gives them, times packed [N, K] -> float32[B, N].

    `codes` are [B, W], W being K rounded up to whole groups and blocks.
    """
    spec, rows = weight.spec, weight.shape[0]
    weight_codes, weight_scales = _whole_groups(weight)
    step = min(spec.block, GROUP)  # both scales are constant over a dot product of this length
    batch, width = codes.shape
    blocks = codes.view(batch, width // step, step).transpose(0, 1)
    group_scales = scales.t().unsqueeze(1).unsqueeze(-1)
    height, parts = _height(width, batch), []
    zeros = weight.zero_points
    for index, part in enumerate(slices(weight_codes, height)):
        rows_here = slice(index * height, index * height + len(part))
        part_scales = weight_scales[rows_here]
        values = split(_shifted(part, None if zeros is None else zeros[rows_here], spec), step)
        # With the vector on the left: 23 us for 512x256 on one core, against 93 the other way.
        terms = torch.bmm(blocks, values.permute(1, 2, 0))  # [K/step, B, R]
        row_scales = decode_scales(part_scales, spec).t().unsqueeze(1).unsqueeze(1)
        terms.view(width // spec.block, spec.block // step, batch, len(part)).mul_(row_scales)
        terms.view(width // GROUP, GROUP // step, batch, len(part)).mul_(group_scales)
        parts.append(_fold(terms) * weight.global_scale)
    return joined(parts).view(batch, rows)


for _spec in FORMATS.values():
    if _spec.bits == 4:
        register(_spec.name, "int8-g32", "reference")(linear_a8)


@register("nvfp4", "bf16", "reference")
@register("mxfp4", "bf16", "reference")
def linear_a16(x: Tensor, weight: QuantizedTensor) -> Tensor:
    """float[..., K] rounded to bfloat16, times packed [N, K] -> float32[..., N]."""
    rows, columns = weight.shape
    spec = weight.spec
    flat = checked(x, columns).to(torch.bfloat16).float()
    width = weight.codes.shape[1] * 2
    if width > columns:
        flat = F.pad(flat, (0, width - columns))
    height, parts = _height(width), []
    for part, part_scales in zip(
        slices(weight.codes, height), slices(weight.scales, height), strict=True
    ):
        values = split(decode_codes(part, spec), spec.block)
        values.mul_(decode_scales(part_scales, spec).unsqueeze(-1))  # exact
        parts.append(torch.mm(flat, values.view(-1, width).t()))
    return joined(parts).mul_(weight.global_scale).view(*x.shape[:-1], rows)


@register("bf16", "bf16", "reference")
def linear_bf16(x: Tensor, weight: Tensor) -> Tensor:
    """float[..., K] rounded to bfloat16, times bfloat16 [N, K] -> float32[..., N].

    Widened a slice at a time: 92 us for 1536x256 on one core. Torch's bfloat16 linear takes 95 and
    rounds its output to bfloat16; multiplying mixed types and summing takes 200.
    """
    rows, columns = weight.shape
    flat = checked(x, columns).to(torch.bfloat16).float()
    parts = [torch.mm(flat, part.float().t()) for part in slices(weight, _height(columns))]
    return joined(parts).view(*x.shape[:-1], rows)
