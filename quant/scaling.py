"""Per-channel scales between a writer and the linear that reads it: AWQ and SmoothQuant.

Dividing channel k of a linear's input by s[k] and multiplying column k of its weight by s[k] leaves
the product as it is. Large s[k] gives the column finer steps of its block, at the cost of its
neighbours; it also shrinks what the input's own rounding sees. The division is folded into whatever
writes the channel, so it costs nothing at run time.

Both methods are searched by what counts: the error of the layer's output on calibration inputs,
with the weight rounded in the real format and the input in the real activation format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.quant.emulate import emulate_input
from wmrt.quant.quantize import quantize
from wmrt.quant.recipe import Recipe
from wmrt.quant.steps import Awq, SmoothQuant

# What a search looks at, at most: a comparison of powers needs no more, and the cost of one power
# does not grow with the number of windows.
TOKENS = 1024
ROWS = 2048
# Channels weaker than this share of the strongest are treated alike: a dead one has no magnitude.
FLOOR = 1e-4


@dataclass(frozen=True, eq=False)
class Fold:
    """A place where scales can go: a writer's channels, and the linear that reads them.

    * `reader`: name of the linear
    * `channels`: int64[K], the scale that column k takes; several columns may share one
    * `apply`: takes float32 scales, one per channel; divides the writer, multiplies the reader
    """

    reader: str
    channels: Tensor
    apply: Callable[[Tensor], None]


def search(
    step: Awq | SmoothQuant, fold: Fold, x: Tensor, weight: Tensor, recipe: Recipe
) -> Tensor | None:
    """The scales float32[channels] of ``fold`` for inputs x[..., K] and weight[N, K].

    None where no power tried is better than leaving things alone. A SmoothQuant step with a fixed
    alpha is applied without a search.
    """
    if isinstance(step, Awq):
        strength = _by_channel(x.abs().flatten(0, -2).mean(0), fold.channels, "mean")
        powers = [i / step.grid for i in range(1, step.grid + 1)]
        candidates = [_power(strength, power) for power in powers]
    else:
        alphas = [i / 20 for i in range(1, 20)] if step.alpha is None else [step.alpha]
        ceiling = _by_channel(x.abs().flatten(0, -2).amax(0), fold.channels, "amax")
        columns = _by_channel(weight.abs().amax(0), fold.channels, "amax")
        candidates = [_power(ceiling, a) / _power(columns, 1 - a) for a in alphas]
        if step.alpha is not None:
            return _centred(candidates[0])
    trial = _Trial(x, weight, recipe)
    best, found = trial.error(None), None
    for scale in map(_centred, candidates):
        error = trial.error(scale[fold.channels])
        if error < best:
            best, found = error, scale
    return found


class _Trial:
    """Output error of one linear under candidate scales, on evenly spaced rows of x and W."""

    def __init__(self, x: Tensor, weight: Tensor, recipe: Recipe) -> None:
        self.x = _thinned(x.flatten(0, -2), TOKENS)
        self.weight = _thinned(weight, ROWS)
        self.recipe = recipe
        self.exact = self.x @ self.weight.T

    def error(self, scale: Tensor | None) -> float:
        """Summed squared error with column k scaled by scale[k]."""
        x, weight = self.x, self.weight
        if scale is not None:
            x, weight = x / scale, weight * scale
        rounded = quantize(weight, self.recipe.weight_format).dequantize()
        output = emulate_input(x, self.recipe.activation) @ rounded.T
        return float((output - self.exact).square().sum())


def _thinned(rows: Tensor, most: int) -> Tensor:
    """At most ``most`` rows, evenly spaced."""
    if len(rows) <= most:
        return rows
    return rows[torch.arange(most) * len(rows) // most]


def _by_channel(columns: Tensor, channels: Tensor, how: str) -> Tensor:
    """One number per channel from one per column."""
    count = int(channels.max()) + 1
    return columns.new_zeros(count).scatter_reduce(0, channels, columns, how, include_self=False)


def _power(strength: Tensor, power: float) -> Tensor:
    """strength ** power, relative to the strongest and with a floor; 1 for a dead layer."""
    largest = strength.max()
    if not bool(largest > 0):
        return torch.ones_like(strength)
    return (strength / largest).clamp(min=FLOOR).pow(power)


def _centred(scale: Tensor) -> Tensor:
    """With largest and smallest equally far from 1, as AWQ normalises: formats with float scales
    do not care, and what is stored elsewhere stays within its usual range."""
    return scale / (scale.max() * scale.min()).sqrt()
