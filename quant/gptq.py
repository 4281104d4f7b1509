"""GPTQ: codes that leave the smallest output error, found column by column.

Rounding a row w to q costs (q - w) H (q - w)^T, H the mean of x x^T over the layer's inputs. With
H = M D M^T, M unit triangular, the cost is a sum over columns of D times the square of what
(q - w) M has there, and that depends only on columns visited before. So each column is rounded to
the nearest level of w less what the errors so far weigh in it. GPTQ (Frantar et al. 2023, algorithm
1) writes the same steps with a Cholesky factor of the inverse of H; this form (LDLQ, Chee et al.
2023) needs no inverse: one factorisation and one matrix in memory.

On the shipped model and held-out episodes, output error over that of rounding to nearest, mean over
its 8 linears, searched scales: nvfp4 .51, with two more passes .46; mxfp4 .53, .49; int4-g128 .50,
.48. Scales moved as well (`Rescale`): .45, .48, .47.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.block_scales import blocks_of
from wmrt.quant.formats import ZERO_POINTS, BlockFormat, block_format, decode_scales
from wmrt.quant.nearest import nearest
from wmrt.quant.quantize import quantize
from wmrt.quant.rescale import rescale
from wmrt.quant.scales import Chosen
from wmrt.quant.steps import Gptq, Rescale
from wmrt.quant.tensor import QuantizedTensor, check_scales, layout

COLUMNS = 128  # columns whose errors are spread one by one; beyond, by one matrix product
ROWS = 4096  # rows at a time: one column of them and its neighbours stay in a core's cache


@torch.no_grad()
def gptq(
    weight: Tensor,
    hessian: Tensor,
    format: str,
    chosen: Chosen,
    step: Gptq,
    again: Rescale | None = None,
) -> QuantizedTensor:
    """Round a float weight [N, K] to the 4-bit `format` under the scales `chosen` beforehand.

    Scales are fixed, so columns may be visited in any order; with `step.ordered` by falling
    diagonal of H, so that what matters most is rounded while most columns can still make up for it.
    A column whose inputs were always zero neither takes nor gives: it goes to nearest, not to zero,
    for one day it may carry something. Padding stays zero.

    Args:
        hessian: mean of x x^T over the layer's inputs, float[K, K] (`Hessian.matrix`).
        chosen: of `choose_scales` for this weight and format.
        again: moves the scales after the first rounding (`wmrt.quant.rescale`).

    Raises `QuantizationError` for a weight or scales that `quantize` refuses, a Hessian of another
    shape, not finite or with a negative diagonal, and one that no damping makes positive definite.
    """
    spec = block_format(format)
    _check(weight, hessian, spec)
    _check_chosen(chosen, spec, (weight.shape[0], weight.shape[1]))
    wide = weight.detach().to(torch.float32)
    order = _order(hessian, step)
    factor = _factor(hessian, order, step.damp)
    rounded = torch.empty_like(wide)
    chosen = replace(chosen, scales=chosen.scales.clone())
    for at in range(0, len(wide), ROWS):
        rows = slice(at, at + ROWS)
        part = chosen.rows(rows)
        grid = _Grid.of(part, spec, wide[rows])
        rounded[rows] = _round(wide[rows], factor, order, grid)
        if again is not None:
            rescale(rounded[rows], wide[rows], hessian, step.damp, spec, part, again)
            grid = _Grid.of(part, spec, wide[rows])
        for _ in range(step.passes):
            _improve(rounded[rows], wide[rows], hessian, step.damp, grid)
    packed = quantize(
        rounded,
        spec.name,
        scales=chosen.scales,
        zero_points=chosen.zero_points,
        global_scale=chosen.global_scale,
    )
    return replace(packed, zeroed_blocks=packed.lost_blocks(wide))


def _check(weight: Tensor, hessian: Tensor, spec: BlockFormat) -> None:
    if spec.bits != 4:
        raise QuantizationError(f"gptq rounds to 4-bit formats; {spec.name} has 8 bits")
    if weight.ndim != 2 or not bool(torch.isfinite(weight).all()):
        raise QuantizationError("gptq needs a finite float matrix [N, K] as weight")
    columns = weight.shape[1]
    if hessian.shape != (columns, columns) or not hessian.is_floating_point():
        raise QuantizationError(
            f"the Hessian of a weight {list(weight.shape)} must be float [{columns}, {columns}], "
            f"got {hessian.dtype} {list(hessian.shape)}"
        )
    if not bool(torch.isfinite(hessian).all()):
        raise QuantizationError("the Hessian holds NaN or infinity; calibration went wrong")
    if bool((hessian.diagonal() < 0).any()):
        raise QuantizationError("the Hessian's diagonal, a mean of squares, is negative somewhere")


def _check_chosen(chosen: Chosen, spec: BlockFormat, shape: tuple[int, int]) -> None:
    want = layout(spec, shape)
    given = {"scales": chosen.scales}
    if chosen.global_scale is not None:
        given["global_scale"] = torch.tensor(chosen.global_scale)
    if chosen.zero_points is not None:
        given["zero_points"] = chosen.zero_points
    found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in given.items()}
    if found != {name: kind for name, kind in want.items() if name != "codes"}:
        raise QuantizationError(
            f"scales of a {spec.name} weight {list(shape)} do not fit it: got "
            f"{', '.join(f'{n} {d} {list(s)}' for n, (s, d) in found.items())}; "
            "choose_scales gives those of this weight and format"
        )
    check_scales(spec, chosen.scales)


def _order(hessian: Tensor, step: Gptq) -> Tensor:
    """int64[K]: columns from the last one to be visited to the first."""
    if not step.ordered:
        return torch.arange(len(hessian) - 1, -1, -1)
    return torch.argsort(hessian.diagonal(), stable=True)


def _factor(hessian: Tensor, order: Tensor, damp: float) -> Tensor:
    """float32[K, K], lower triangular with ones on the diagonal: M of H + damp, in that order.

    Float32 is enough for any Hessian it can factor: damping keeps M's errors below 1e-3, and they
    only move targets. What it cannot factor is retried in float64 with more and more damping.
    """
    mean = float(hessian.diagonal().double().mean())
    if mean == 0.0:
        return torch.eye(len(hessian))
    for dtype, share in _attempts(damp):
        matrix = hessian[order.unsqueeze(1), order].to(dtype)
        matrix.diagonal().add_(share * mean)
        lower, info = torch.linalg.cholesky_ex(matrix)
        del matrix
        if not int(info):
            unit: Tensor = lower.div_(lower.diagonal().clone()).float()
            return unit
    raise QuantizationError(
        "the Hessian stays indefinite with its mean diagonal added to it; it is no mean of x x^T"
    )


def _attempts(damp: float) -> Iterator[tuple[torch.dtype, float]]:
    yield torch.float32, damp
    while damp < 1.0:
        yield torch.float64, damp
        damp *= 10.0
    yield torch.float64, 1.0


@dataclass(frozen=True, eq=False)
class _Grid:
    """Levels of n rows: the step of each block and where zero is, float32[K'/block, n]."""

    spec: BlockFormat
    size: Tensor
    divisor: Tensor
    shift: Tensor | None

    @classmethod
    def of(cls, chosen: Chosen, spec: BlockFormat, weight: Tensor) -> _Grid:
        size = decode_scales(chosen.scales.T.contiguous(), spec)
        if chosen.global_scale is not None:
            size = size * chosen.global_scale
        # A block of zeros stays one, also where its scale is not zero but E8M0's smallest, 2^-127.
        size = size * (blocks_of(weight, spec) != 0).any(-1).T
        shift = None
        if chosen.zero_points is not None:
            shift = chosen.zero_points.T.float() - ZERO_POINTS // 2
        # A step of zero would divide to infinity; times it, every level is zero.
        return cls(spec, size, size.masked_fill(size == 0, 1.0), shift)

    def nearest(self, target: Tensor, column: int) -> Tensor:
        """The nearest values to float32[n] that the block of a column can hold."""
        block = column // self.spec.block
        quotient = target / self.divisor[block]
        if self.shift is None:
            return nearest(quotient, self.spec.element).mul_(self.size[block])
        shift = self.shift[block]
        return nearest(quotient + shift, self.spec.element).sub_(shift).mul_(self.size[block])


def _round(weight: Tensor, factor: Tensor, order: Tensor, grid: _Grid) -> Tensor:
    """float32[n, K]: values on the grid, columns visited from the end of `order` to its start."""
    original = weight.T[order]
    errors = torch.empty_like(original)
    columns = order.tolist()
    for stop in range(len(columns), 0, -COLUMNS):
        start = max(0, stop - COLUMNS)
        block = slice(start, stop)
        # All errors of earlier blocks at once, those within the block as they arise.
        targets = torch.addmm(original[block], factor[stop:, block].T, errors[stop:], alpha=-1.0)
        for j in range(stop - 1, start - 1, -1):
            error = torch.sub(
                grid.nearest(targets[j - start], columns[j]), original[j], out=errors[j]
            )
            if j > start:
                targets[: j - start].addr_(factor[j, start:j], error, alpha=-1.0)
    rounded = torch.empty_like(weight)
    rounded.T[order] = errors.add_(original)
    return rounded


def _improve(rounded: Tensor, weight: Tensor, hessian: Tensor, damp: float, grid: _Grid) -> None:
    """Round every column of float32[n, K] once more, each to the best given all others, in place.

    The damped cost never rises: each step takes the level nearest to its minimum in that column.
    """
    share = damp * float(hessian.diagonal().double().mean())
    if share == 0.0:
        return
    original = weight.T.contiguous()
    errors = rounded.T - original
    for start in range(0, len(original), COLUMNS):
        block = slice(start, min(start + COLUMNS, len(original)))
        near = hessian[block, block].to(torch.float32, copy=True)
        near.diagonal().add_(share)
        # Half the cost's gradient in these columns, kept up to date as they change.
        slope = torch.addmm(share * errors[block], hessian[block].float(), errors)
        for i in range(len(near)):
            column, j = errors[start + i], start + i
            target = torch.sub(column, slope[i], alpha=1.0 / float(near[i, i])).add_(original[j])
            change = grid.nearest(target, j).sub_(original[j]).sub_(column)
            column.add_(change)
            slope.addr_(near[i], change)
    rounded.copy_(errors.add_(original).T)
