"""Calibration: from a float model and recorded inputs to packed weights, one stage at a time.

A model is a `Target`: stages in the order they run, each with some linears. `calibrate` walks them
once. Of each stage it

1. opens the float weights and applies the recipe's transforms (rotation, then searched scales),
2. runs all calibration inputs through it. At each linear, the moment its inputs are known, its
   weight is rounded and the rest of the stage computes with the rounded one. So every linear is
   calibrated on what the already rounded layers before it give (GPTQ's true-sequential order),
3. packs it and drops the float weights.

So one stage's float weights, activations and Hessian are in memory at a time, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError, UsageError, WmrtError
from wmrt.quant.emulate import emulate_input
from wmrt.quant.recipe import Recipe
from wmrt.quant.rounding import round_weight
from wmrt.quant.scaling import Fold, search
from wmrt.quant.steps import Awq, Hadamard, SmoothQuant
from wmrt.quant.tensor import QuantizedTensor

#: Called by a running stage with a linear's name and input; returns the input it computes with.
Tap = Callable[[str, Tensor], Tensor]
#: Progress callback: (linears done, of how many, the one just done).
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Outputs:
    """What a whole model gives, in the basis its float original has, whatever rotates inside.

    hidden float32[..., d] after the final norm, its weight left out, so that its RMS is 1; chunk
    float32[..., H, A], the decoded actions.
    """

    hidden: Tensor
    chunk: Tensor


class Stage(Protocol):
    """A part of a model that is opened, transformed, run and packed as one."""

    @property
    def name(self) -> str: ...

    def linears(self) -> Sequence[str]:
        """Names of its linears in the order they run."""

    def open(self) -> None:
        """Bring its float weights into memory. Raises `QuantizationError` if any is not finite."""

    def weight(self, name: str) -> Tensor:
        """float32[N, K] of an open stage."""

    def replace(self, name: str, weight: Tensor) -> None:
        """Compute with another float weight from now on."""

    def output_scale(self, name: str) -> Tensor | None:
        """float32[N]: what makes a linear's output rows as large as they were before folding; None
        where nothing was folded into them."""

    def rotate(self, seed: int) -> None:
        """Rotate it into the basis that ``seed`` names."""

    def folds(self) -> Sequence[Fold]:
        """Places for scales, in the order they are to be searched."""

    def run(self, stream: Any, tap: Tap) -> Any:
        """What the next stage takes, from what the stage before gave; the first takes the
        calibration inputs themselves. The last gives `Outputs`."""

    def close(self, packed: Mapping[str, QuantizedTensor], recipe: Recipe) -> None:
        """Keep the packed weights, round the rest as stored, and drop what was opened."""

    def discard(self) -> None:
        """Drop what was opened and keep nothing."""


class Target(Protocol):
    """A model to calibrate. Walked once: its stages change as they are visited."""

    def stages(self) -> Sequence[Stage]:
        """In the order they run."""

    def keeps(self, name: str) -> bool:
        """Whether the model itself wants this linear in bf16, whatever the recipe."""


class Watch(Protocol):
    """Looks at every stage while it is open: as stored, transformed, and rounded; and at every
    weight as it is rounded."""

    def opened(self, stage: Stage) -> None: ...

    def transformed(self, stage: Stage) -> None: ...

    def weight(self, name: str, weight: Tensor, packed: QuantizedTensor) -> None: ...

    def rounded(self, stage: Stage) -> None: ...


def to_pack(target: Target, recipe: Recipe) -> list[str]:
    """Names of the linears of ``target`` that ``recipe`` packs, in the order they run."""
    names = [name for stage in target.stages() for name in stage.linears()]
    return [name for name in names if not target.keeps(name) and not recipe.excludes(name)]


@torch.no_grad()
def calibrate(
    target: Target,
    recipe: Recipe,
    batches: Any = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> dict[str, QuantizedTensor]:
    """Pack every linear of ``target`` under ``recipe``, in place; returns what is packed, by name.

    Args:
        target: walked from its first stage to its last; afterwards it holds the packed model.
        recipe: must pack something. Linears it excludes, and those the target keeps, become bf16.
        batches: calibration inputs, as the target's first stage takes them; None for a recipe
            without a step that reads data.
        progress: told after every linear that is packed.
        watch: sees every open stage; `wmrt.quant.meter.Meter` measures with it.

    Raises:
        UsageError: the recipe packs nothing, or needs data and there is none.
        QuantizationError: a weight or an activation is not finite, or a step cannot round a weight;
            the message starts with the layer's name.
    """
    require_possible(recipe, batches)
    rounder = _Rounder(recipe, to_pack(target, recipe), progress, watch)
    stream = batches
    for stage in target.stages():
        stage.open()
        if watch is not None:
            watch.opened(stage)
        transform(stage, stream, recipe)
        if watch is not None:
            watch.transformed(stage)
        stream = rounder.run(stage, stream)
        if watch is not None:
            watch.rounded(stage)
        mine = {name: rounder.packed[name] for name in stage.linears() if name in rounder.packed}
        stage.close(mine, recipe)
    return rounder.packed


def require_possible(recipe: Recipe, batches: Any) -> None:
    """Raise `UsageError` for a recipe that packs nothing, or that needs data there is none of."""
    if not recipe.packs:
        raise UsageError(f"recipe {recipe.name} packs nothing; give one that does, such as nvfp4")
    if recipe.needs_data and batches is None:
        reading = ", ".join(step.kind for step in recipe.steps if step.needs_data)
        raise UsageError(
            f"steps {reading} read recorded episodes, and none were given; "
            "record some with: wmrt collect"
        )


@torch.no_grad()
def transform(stage: Stage, stream: Any, recipe: Recipe) -> None:
    """Apply the recipe's transforms to an open stage, its scales searched on the inputs ``stream``.

    Each fold is searched on what its reader gets once the folds before it are applied.
    """
    for step in recipe.steps:
        if isinstance(step, Hadamard):
            stage.rotate(step.seed)
        if isinstance(step, (Awq, SmoothQuant)) and stage.folds():
            inputs = record(stage, stream)
            for fold in stage.folds():
                x = inputs[fold.reader]
                scale = search(step, fold, x, stage.weight(fold.reader), recipe)
                if scale is not None:
                    fold.apply(scale)


def record(stage: Stage, stream: Any) -> dict[str, Tensor]:
    """The input of every linear of an open stage, computed with its weights as they are now."""
    inputs: dict[str, Tensor] = {}

    def tap(name: str, x: Tensor) -> Tensor:
        inputs[name] = require_finite(name, x)
        return x

    stage.run(stream, tap)
    return inputs


def require_finite(name: str, x: Tensor) -> Tensor:
    """``x``, or `QuantizationError` when not all of it is finite."""
    if not bool(torch.isfinite(x).all()):
        raise QuantizationError(
            f"{name}: its inputs on the calibration windows hold NaN or infinity; "
            "the model or the recording is broken"
        )
    return x


class _Rounder:
    """Rounds each linear in the moment its inputs are known."""

    def __init__(
        self,
        recipe: Recipe,
        names: Sequence[str],
        progress: Progress | None,
        watch: Watch | None,
    ) -> None:
        self.recipe, self.names, self.progress, self.watch = recipe, names, progress, watch
        self.packed: dict[str, QuantizedTensor] = {}

    def run(self, stage: Stage, stream: Any) -> Any:
        """Round the linears of ``stage``; its outputs, or None without inputs."""
        if stream is not None:
            return stage.run(stream, lambda name, x: self._visit(stage, name, x))
        for name in stage.linears():
            self._round(stage, name, None)
        return None

    def _visit(self, stage: Stage, name: str, x: Tensor) -> Tensor:
        self._round(stage, name, require_finite(name, x))
        return emulate_input(x, self.recipe.activation if name in self.packed else "bf16")

    def _round(self, stage: Stage, name: str, x: Tensor | None) -> None:
        weight = stage.weight(name)
        if name not in self.names:
            stage.replace(name, weight.to(torch.bfloat16).float())
            return
        self.packed[name] = packed = named_round(name, weight, x, self.recipe)
        if self.watch is not None:
            self.watch.weight(name, weight, packed)
        stage.replace(name, packed.dequantize())
        if self.progress is not None:
            self.progress(len(self.packed), len(self.names), name)


def named_round(name: str, weight: Tensor, x: Tensor | None, recipe: Recipe) -> QuantizedTensor:
    """`round_weight`, its errors starting with the layer's name."""
    try:
        return round_weight(weight, x, recipe)
    except WmrtError as error:
        raise type(error)(f"{name}: {error}") from None
