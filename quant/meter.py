"""What packing does to a model, measured on inputs that calibration does not see.

Three streams of the same inputs walk the stages side by side: through the float weights as stored,
as transformed, and as rounded. The first two compute the same function in two bases.

* A layer's output error is the RMS of (rounded layer - float layer) over that of the float layer,
  both fed the float model's own activations: what this one layer loses. Rounding to nearest is
  measured beside it on the untransformed weight, in the same activation format.
* The model's error is that of `Outputs`, everything rounded at once.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.calibrate import Outputs, Stage, Tap, Target, require_finite, to_pack
from wmrt.quant.emulate import emulate_input
from wmrt.quant.quantize import quantize
from wmrt.quant.recipe import Recipe
from wmrt.quant.tensor import QuantizedTensor


@dataclass
class LayerReport:
    """One packed linear.

    * `relative_error`: RMS of the change of its weight, as transformed, over the RMS of the weight;
      None where nothing changed. `zeroed_blocks`: blocks that were not zero and are now
    * `output_error` by the recipe's steps and `nearest_error` by round to nearest: None without
      inputs to measure on, and where the float layer gives nothing but zeros
    """

    layer: str
    relative_error: float | None
    zeroed_blocks: int
    output_error: float | None = None
    nearest_error: float | None = None


@dataclass(frozen=True)
class ModelError:
    """RMS of the change of `Outputs`: of the normalised hidden state (whose own RMS is 1), and of
    the decoded actions (in [-1, 1])."""

    hidden: float
    action: float


class Meter:
    """A `wmrt.quant.calibrate.Watch`: give it to `calibrate`, then read `layers` and `model`."""

    def __init__(self, target: Target, recipe: Recipe, held: Any = None) -> None:
        """``held``: inputs as the target's first stage takes them, not those of calibration;
        without them only weights are measured."""
        self.recipe, self.names = recipe, to_pack(target, recipe)
        self.layers: dict[str, LayerReport] = {}
        self._measures = held is not None
        self._stored = self._moved = self._rounded = held
        self._nearest: dict[str, float | None] = {}
        self._expected: dict[str, tuple[Tensor, Tensor]] = {}

    def opened(self, stage: Stage) -> None:
        def tap(name: str, x: Tensor) -> Tensor:
            if name in self.names:
                weight = stage.weight(name)
                nearest = quantize(weight, self.recipe.weight_format).dequantize()
                given = emulate_input(require_finite(name, x), self.recipe.activation)
                self._nearest[name] = relative(given @ nearest.T, x @ weight.T)
            return x

        if self._measures:
            self._stored = stage.run(self._stored, tap)

    def transformed(self, stage: Stage) -> None:
        def tap(name: str, x: Tensor) -> Tensor:
            if name in self.names:
                self._expected[name] = x, x @ stage.weight(name).T
            return x

        if self._measures:
            self._moved = stage.run(self._moved, tap)

    def weight(self, name: str, weight: Tensor, packed: QuantizedTensor) -> None:
        error = relative(packed.dequantize(), weight)
        self.layers[name] = LayerReport(name, error or None, packed.zeroed_blocks)

    def rounded(self, stage: Stage) -> None:
        if not self._measures:
            return
        for name, (x, expected) in self._expected.items():
            given = emulate_input(x, self.recipe.activation)
            row, scale = self.layers[name], stage.output_scale(name)
            row.nearest_error = self._nearest[name]
            row.output_error = relative(given @ stage.weight(name).T, expected, scale)
        self._expected.clear()
        self._rounded = stage.run(self._rounded, emulated(self.names, self.recipe))

    @property
    def model(self) -> ModelError | None:
        """The whole model's error once every stage was visited; None without inputs."""
        return model_error(self._rounded, self._stored) if self._measures else None


def emulated(names: Container[str], recipe: Recipe) -> Tap:
    """A tap for a stage whose weights are rounded already: ``names`` packed, the others bf16."""

    def tap(name: str, x: Tensor) -> Tensor:
        return emulate_input(x, recipe.activation if name in names else "bf16")

    return tap


def relative(found: Tensor, expected: Tensor, scale: Tensor | None = None) -> float | None:
    """RMS of the difference over the RMS of ``expected``, the last axis weighted by ``scale``; None
    where ``expected`` is zero."""
    change = found - expected
    if scale is not None:
        change, expected = change * scale, expected * scale
    power = float(expected.double().square().mean())
    return math.sqrt(float(change.double().square().mean()) / power) if power > 0 else None


def model_error(found: object, expected: object) -> ModelError:
    """Difference of two models' outputs on the same inputs."""
    if not isinstance(found, Outputs) or not isinstance(expected, Outputs):
        raise QuantizationError("the model has not been walked to its end; calibrate it first")
    return ModelError(_rms(found.hidden - expected.hidden), _rms(found.chunk - expected.chunk))


def _rms(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double()) / math.sqrt(x.numel()))
