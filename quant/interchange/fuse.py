"""Matrices that were quantized apart, as one matrix with one global scale."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant import formats
from wmrt.quant.quantize import quantize
from wmrt.quant.tensor import QuantizedTensor


def fuse(parts: Sequence[QuantizedTensor]) -> QuantizedTensor:
    """Stack the rows of weights [N_i, K] of one format, as fused QKV or gate/up matrices need.

    mxfp4, int4 and nvfp4 parts with one global scale are stacked as they are. nvfp4 parts whose
    global scales differ cannot be: a block's step is its scale times the global one, so one part's
    global applied to another's blocks scales that whole part. The largest global is kept, the
    parts that have it keep every bit, and in the others each block's scale is derived again for it
    (of the nearest E4M3 value and its neighbours, the one that leaves the least squared error) and
    the codes rounded under that. Where globals differ by a power of two nothing changes in value,
    short of scales that underflow (counted in `zeroed_blocks`).

    Raises `QuantizationError` for no parts, parts of other formats or widths, and 8-bit formats.
    """
    if not parts:
        raise QuantizationError("nothing to fuse: give at least one weight")
    first = parts[0]
    for part in parts:
        if (part.format, part.shape[1]) != (first.format, first.shape[1]):
            raise QuantizationError(
                f"cannot fuse {first.format} of {first.shape[1]} columns with "
                f"{part.format} of {part.shape[1]}"
            )
    if first.spec.bits != 4:
        raise QuantizationError(f"fusing is for 4-bit formats, not {first.format}")
    factor = max(part.global_scale for part in parts)
    alike = [part if part.global_scale == factor else _regauge(part, factor) for part in parts]
    zero_points = [part.zero_points for part in alike if part.zero_points is not None]
    return QuantizedTensor(
        first.format,
        (sum(part.shape[0] for part in alike), first.shape[1]),
        torch.cat([part.codes for part in alike]),
        torch.cat([part.scales for part in alike]),
        factor,
        sum(part.zeroed_blocks for part in alike),
        zero_points=torch.cat(zero_points) if zero_points else None,
    )


def _regauge(part: QuantizedTensor, factor: float) -> QuantizedTensor:
    """nvfp4 `part` under the larger global scale `factor`."""
    weight = part.dequantize()
    step = formats.decode_e4m3(part.scales) * (part.global_scale / factor)
    nearest = formats.encode_e4m3(step)
    # A scale one step of E4M3 up or down is up to 12.5% away; 0x7E is the largest.
    tried = [nearest, (nearest.int() + 1).clamp(max=0x7E), (nearest.int() - 1).clamp(min=0)]
    best: Tensor | None = None
    least = torch.empty(0)
    for candidate in (scales.to(torch.uint8) for scales in tried):
        candidate = torch.where(part.scales == 0, part.scales, candidate)
        q = quantize(weight, "nvfp4", scales=candidate, global_scale=factor)
        error = _block_errors(q, weight)
        if best is None:
            best, least = candidate, error
        else:
            better = error < least
            best, least = torch.where(better, candidate, best), torch.where(better, error, least)
    assert best is not None
    return quantize(weight, "nvfp4", scales=best, global_scale=factor)


def _block_errors(q: QuantizedTensor, weight: Tensor) -> Tensor:
    """Squared error of each block, [N, K'/16]."""
    width = q.spec.width(weight.shape[1]) - weight.shape[1]
    change = torch.nn.functional.pad(q.dequantize() - weight, (0, width))
    return formats.split(change, q.spec.block).square().sum(-1)
