"""The scale of every block, chosen by the error it leaves instead of by the format's rule alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.block_scales import blocks_of, nvfp4_scales
from wmrt.quant.elements import E2M1_MAX
from wmrt.quant.formats import ZERO_POINTS, BlockFormat, block_format, decode_scales
from wmrt.quant.nearest import nearest
from wmrt.quant.quantize import quantize
from wmrt.quant.rules import Rules
from wmrt.quant.steps import Clip, FourOverSix
from wmrt.quant.tensor import QuantizedTensor

# Elements searched at a time: with what the search derives from them they stay in a core's cache.
SLICE = 1 << 18


@dataclass(frozen=True, eq=False)
class Chosen:
    """Scales for `quantize` or `gptq`, in the format's dtype and shape [N, K'/block].

    `global_scale` is None for formats without one, `zero_points` (uint8) for those without any.
    """

    scales: Tensor
    global_scale: float | None = None
    zero_points: Tensor | None = None

    def rows(self, rows: slice) -> Chosen:
        """Those of some rows, as views."""
        zero_points = None if self.zero_points is None else self.zero_points[rows]
        return Chosen(self.scales[rows], self.global_scale, zero_points)


def choose_scales(
    weight: Tensor,
    format: str,
    step: FourOverSix | Clip | None = None,
    *,
    importance: Tensor | None = None,
    global_scale: float | None = None,
) -> Chosen:
    """The scales of a float weight [N, K] in the 4-bit `format`, as `step` picks them.

    Every candidate is a scale the format can store, and its error is that of rounding to nearest
    under it; of equal errors the format's own scale wins. A step never leaves more error (weighted
    by `importance`, where it is) than the own scale does, block by block.

    Args:
        step: None for the format's own rule.
        importance: float[K], what a squared error in a column counts: the mean squared activation.
            A weighted `Clip` needs it; nothing else reads it.
        global_scale: g of nvfp4 when it is given, as for one part of a fused weight.

    Raises `QuantizationError` for a weight `quantize` refuses, an 8-bit format, four-over-six on
    anything but nvfp4, and importance that is missing, of another shape, negative or not finite.
    """
    spec = block_format(format)
    _check(spec, step)
    weighted = isinstance(step, Clip) and step.weighted
    counts = _importance(importance, spec, weight) if weighted else None
    rules = Rules(nvfp4_span=E2M1_MAX * step.largest) if isinstance(step, FourOverSix) else Rules()
    own = quantize(weight, spec.name, global_scale=global_scale, rules=rules)
    factor = own.global_scale if spec.has_global else None
    if step is None:
        return Chosen(own.scales, factor, own.zero_points)
    scales, zeros = _search(weight, own, step, counts)
    return Chosen(scales, factor, zeros)


def _check(spec: BlockFormat, step: FourOverSix | Clip | None) -> None:
    if spec.bits != 4:
        raise QuantizationError(
            f"scales are chosen for 4-bit formats; {spec.name} has one a row, by its largest value"
        )
    if isinstance(step, FourOverSix) and not spec.has_global:
        raise QuantizationError(f"four-over-six is for nvfp4 weights, not {spec.name}")


def _search(
    weight: Tensor, own: QuantizedTensor, step: FourOverSix | Clip, counts: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The best scales and zero points, a slice of rows at a time."""
    scales, zeros = own.scales, own.zero_points
    height = max(1, SLICE // own.spec.width(weight.shape[1]))
    for at in range(0, len(weight), height):
        rows = slice(at, at + height)
        blocks = blocks_of(weight[rows], own.spec)
        search = _Search(own.spec, blocks, own.global_scale, step, counts)
        best = search.run(scales[rows], None if zeros is None else zeros[rows])
        scales[rows] = best.scales
        if zeros is not None and best.zero_points is not None:
            zeros[rows] = best.zero_points
    return scales, zeros


def _importance(importance: Tensor | None, spec: BlockFormat, weight: Tensor) -> Tensor:
    """float32[K'/block, block]; padding counts nothing."""
    if importance is None:
        raise QuantizationError(
            "clip weighs errors by mean squared activation; give importance [K], "
            "or a Clip with weighted=False"
        )
    columns = weight.shape[-1]
    given = importance.detach().to(torch.float32).reshape(1, -1)
    if importance.shape != (columns,) or not bool((torch.isfinite(given) & (given >= 0)).all()):
        raise QuantizationError(
            f"importance must be [{columns}], finite and not negative, "
            f"got {list(importance.shape)} from {float(given.min())} to {float(given.max())}"
        )
    return blocks_of(given, spec)[0]


@dataclass(frozen=True, eq=False)
class _Search:
    """Candidates for the scales of some rows, and the error each leaves."""

    spec: BlockFormat
    blocks: Tensor  # float32[n, K'/block, block]
    factor: float
    step: FourOverSix | Clip
    counts: Tensor | None

    def run(self, scales: Tensor, zero_points: Tensor | None) -> Chosen:
        """The best scale of every block, beginning with the own ones given."""
        best, zeros = scales.clone(), zero_points
        least = self.error(best, zeros)
        for candidate, moved in self.candidates(scales, zero_points):
            error = self.error(candidate, moved)
            better = error < least
            least = torch.where(better, error, least)
            best = torch.where(better, candidate, best)
            if zeros is not None and moved is not None:
                zeros = torch.where(better, moved, zeros)
        return Chosen(best, self.factor, zeros)

    def error(self, scales: Tensor, zero_points: Tensor | None) -> Tensor:
        """Error [n, K'/block] of rounding to nearest under `scales`."""
        size = (decode_scales(scales, self.spec) * self.factor).unsqueeze(-1)
        quotients = self.blocks / size.masked_fill(size == 0, 1.0)
        if zero_points is None:
            levels = nearest(quotients, self.spec.element)
        else:
            shift = zero_points.float().unsqueeze(-1) - ZERO_POINTS // 2
            levels = nearest(quotients.add_(shift), self.spec.element).sub_(shift)
        change = levels.mul_(size).sub_(self.blocks)
        if isinstance(self.step, FourOverSix) and self.step.metric == "mae":
            return change.abs_().sum(-1)
        change.square_()
        return (change if self.counts is None else change.mul_(self.counts)).sum(-1)

    def candidates(
        self, own: Tensor, zero_points: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Stored scales and zero points [n, K'/block] to try beside the own ones."""
        amax = self.blocks.abs().amax(-1)
        if isinstance(self.step, FourOverSix):
            # The largest magnitude lands on 4 instead of 6.
            yield nvfp4_scales(amax * 1.5, self.factor), None
        elif self.spec.scale == "e4m3":
            lowest = nvfp4_scales(amax * self.step.lowest, self.factor)
            highest = nvfp4_scales(amax * self.step.highest, self.factor)
            for offset in range(int((highest - lowest).max()) + 1):
                yield torch.minimum(lowest + offset, highest), None
        elif self.spec.scale == "e8m0":
            for offset in (-1, 1):
                yield (own.int() + offset).clamp_(0, 254).to(torch.uint8), None
        else:
            for factor in torch.linspace(self.step.lowest, self.step.highest, self.step.grid):
                # A float16 that would overflow stays the own one.
                scaled = (own.float() * factor).to(torch.float16)
                yield torch.where(torch.isfinite(scaled), scaled, own), zero_points
