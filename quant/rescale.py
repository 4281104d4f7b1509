"""The scale of every block once more, chosen together with its codes and given all other blocks.

With everything outside a block fixed, the squared output error of a row is (q - t) H_b (q - t)^T
and a constant: H_b is the block's own part of H, and t where the block would be if it could be
anything, which makes up for what all the others got wrong. `choose_scales` could only ask what a
scale does to the weight itself. Here every candidate is rounded column by column towards t, as GPTQ
does it, and taken where that cost falls. So the cost of no row rises, whatever the candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.quant.block_scales import blocks_of
from wmrt.quant.formats import ZERO_POINTS, BlockFormat, decode_scales
from wmrt.quant.nearest import nearest
from wmrt.quant.scales import Chosen
from wmrt.quant.steps import Rescale

COLUMNS = 128  # whole blocks of every 4-bit format, whose slope is kept up to date as they change
SLICE = 1 << 15  # candidates of rows tried at a time: 1.2 s for 2048x1024, 1.7 with half of it
SPACING = 0.04  # of float16 candidates, relative; E4M3 has steps of 0.06 to 0.125
E4M3_LARGEST = 0x7E
E8M0_LARGEST = 254


@torch.no_grad()
def rescale(
    rounded: Tensor,
    weight: Tensor,
    hessian: Tensor,
    damp: float,
    spec: BlockFormat,
    chosen: Chosen,
    step: Rescale,
) -> None:
    """Re-choose scales and values of some rows, in place.

    Args:
        rounded: float32[n, K], on the grid of ``chosen``; its new values are on the new one.
        weight: float32[n, K], what was rounded. A block of zeros in it stays as it is.
        hessian: float[K, K]; ``damp`` times its mean diagonal is added, as `gptq` does.
        chosen: of these rows; its ``scales`` become the new ones.

    A block whose part of the Hessian is not positive definite in float64 has no cost to compare;
    it keeps its scale.
    """
    share = damp * float(hessian.diagonal().double().mean())
    if share == 0.0:
        return
    original = weight.T.contiguous()
    errors = rounded.T - original
    held = (blocks_of(weight, spec) != 0).any(-1)
    for _ in range(step.passes):
        for start in range(0, len(original), COLUMNS):
            block = slice(start, min(start + COLUMNS, len(original)))
            near = hessian[block, block].to(torch.float32, copy=True)
            near.diagonal().add_(share)
            # Half the cost's gradient in these columns.
            slope = torch.addmm(share * errors[block], hessian[block].float(), errors)
            for own in _blocks(len(near), spec.block):
                columns = slice(start + own.start, start + own.stop)
                at = columns.start // spec.block
                problem = _Block.of(near[own, own], spec, chosen, at, step)
                if problem is None:
                    continue
                change = problem.change(original[columns], errors[columns], slope[own], held[:, at])
                errors[columns] += change
                slope.addmm_(near[:, own], change)
    rounded.copy_(errors.add_(original).T)


def _blocks(columns: int, size: int) -> Iterator[slice]:
    return (slice(at, min(at + size, columns)) for at in range(0, columns, size))


@dataclass(frozen=True, eq=False)
class _Block:
    """One block of columns of some rows: what decides its cost, and where its scales are kept.

    ``lower`` float64[B, B] is the Cholesky factor of its damped part of H, columns in ``order``.
    """

    spec: BlockFormat
    chosen: Chosen
    at: int
    step: Rescale
    order: Tensor
    lower: Tensor

    @classmethod
    def of(
        cls, part: Tensor, spec: BlockFormat, chosen: Chosen, at: int, step: Rescale
    ) -> _Block | None:
        # As in GPTQ what matters most is rounded first, and rounding goes from the end.
        order = torch.argsort(part.diagonal(), stable=True)
        lower, info = torch.linalg.cholesky_ex(part[order.unsqueeze(1), order].double())
        return None if int(info) else cls(spec, chosen, at, step, order, lower)

    def change(self, original: Tensor, errors: Tensor, slope: Tensor, held: Tensor) -> Tensor:
        """float32[B, n]: what to add to the errors; writes the new scales."""
        found = torch.zeros_like(errors)
        height = max(1, SLICE // len(self.candidates(self.chosen.scales[:1, self.at])))
        for rows in _blocks(errors.shape[1], height):
            down = torch.cholesky_solve(slope[self.order, rows].double(), self.lower).float()
            present = (slope[self.order, rows] * down).sum(0)
            before = (original[:, rows] + errors[:, rows])[self.order]
            scales, values, cost = self.best(rows, before - down)
            better = (cost < present) & held[rows]
            mine = self.chosen.scales[rows, self.at]
            self.chosen.scales[rows, self.at] = torch.where(better, scales, mine)
            found[self.order, rows] = torch.where(better, values - before, 0.0)
        return found

    def best(self, rows: slice, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scales [n], values float32[B, n] in ``order`` and cost float32[n] of the best candidate
        for the targets float32[B, n]."""
        stored = self.candidates(self.chosen.scales[rows, self.at])
        count, height = stored.shape
        size = decode_scales(stored, self.spec) * (self.chosen.global_scale or 1.0)
        divisor = size.masked_fill(size == 0, 1.0)
        shift = None if self.chosen.zero_points is None else self._shift(rows)
        diagonal = self.lower.diagonal()
        factor, weights = (self.lower / diagonal).float(), diagonal.square().tolist()
        wanted = target.repeat_interleave(count, 0).view(len(target), count * height)
        values = torch.empty(len(target), count, height)
        cost = torch.zeros(count, height)
        for j in range(len(target) - 1, -1, -1):
            aim = wanted[j].view(count, height)
            levels = aim / divisor
            if shift is not None:
                levels.add_(shift)
            levels = nearest(levels, self.spec.element)
            if shift is not None:
                levels.sub_(shift)
            torch.mul(levels, size, out=values[j])
            off = torch.sub(values[j], aim, out=levels)
            cost.addcmul_(off, off, value=weights[j])
            if j > 0:
                error = (values[j] - target[j]).flatten()
                wanted[:j].addr_(factor[j, :j], error, alpha=-1.0)
        # A scale that overflows has no cost.
        least, at = cost.nan_to_num_(nan=torch.inf).min(0)
        picked = values.gather(1, at.expand(len(target), 1, height)).squeeze(1)
        return stored.gather(0, at.unsqueeze(0)).squeeze(0), picked, least

    def _shift(self, rows: slice) -> Tensor:
        assert self.chosen.zero_points is not None
        return self.chosen.zero_points[rows, self.at].float() - ZERO_POINTS // 2

    def candidates(self, own: Tensor) -> Tensor:
        """Stored scales [C, n] to try: those [n] there are, and their neighbours."""
        reach = self.step.reach
        if self.spec.scale == "fp16":
            factors = 1.0 + SPACING * torch.arange(-reach, reach + 1)
            scaled = (own.float() * factors.unsqueeze(1)).to(torch.float16)
            return torch.where(torch.isfinite(scaled), scaled, own)
        if self.spec.scale == "e8m0":
            reach, largest = 1, E8M0_LARGEST  # a neighbour is twice as large
        else:
            largest = E4M3_LARGEST
        offsets = torch.arange(-reach, reach + 1, dtype=torch.int32).unsqueeze(1)
        return (own.int() + offsets).clamp_(0, largest).to(torch.uint8)
