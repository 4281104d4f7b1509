"""Whether a grown network is its source: the same actions, and weights that are weights."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from wmrt.model.checkpoint import Checkpoint
from wmrt.train.grow_walk import Progress, Streams, Walk, Write, walk

#: Largest difference of an action in [-1, 1], in float32.
TOLERANCE = 1e-4
#: Share of exact zeros a matrix may hold.
MOST_ZEROS = 0.01


@dataclass(frozen=True)
class Matrix:
    """Exact zeros of one matrix."""

    name: str
    zeros: float
    zero_rows: int
    zero_columns: int


def matrices(checkpoint: Checkpoint) -> list[Matrix]:
    """Every stored matrix; of a tensor of more axes all but the last are its rows."""
    found = []
    for name, tensor in checkpoint.tensors.items():
        if tensor.ndim >= 2 and tensor.numel():
            zero = tensor.flatten(0, -2) == 0
            rows, columns = int(zero.all(1).sum()), int(zero.all(0).sum())
            found.append(Matrix(name, float(zero.float().mean()), rows, columns))
    return found


@dataclass(frozen=True)
class Difference:
    """Two networks over the same streams, under one recipe (None: float32).

    ``action`` and ``chunk``: largest difference of the first action and of the whole chunk, in
    [-1, 1]; ``action_rms`` of the first action. ``logit``: largest difference of the action head's
    logits, whose RMS is ``logit_rms``. ``modes`` and ``selections`` count most likely bins and
    chosen past states that differ.
    """

    recipe: str | None
    action: float
    action_rms: float
    chunk: float
    logit: float
    logit_rms: float
    modes: int
    selections: int


@dataclass(frozen=True)
class Report:
    """What `check` found; ``failures`` is empty for a grown network that is its source."""

    robots: int
    steps: int
    window: int
    float32: Difference
    most_zeros: Matrix
    writes: list[Write]
    failures: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check(
    source: Checkpoint, grown: Checkpoint, streams: Streams, progress: Progress | None = None
) -> Report:
    """Compare ``grown`` with ``source`` over ``streams`` in float32, and look at its weights."""
    small, large = walk(source, streams), walk(grown, streams, progress)
    found, held = difference(small, large, None), matrices(grown)
    robots, steps = streams.shape
    return Report(
        robots,
        steps,
        small.network.config.window,
        found,
        max(held, key=lambda m: m.zeros),
        large.writes,
        _failures(found, large.writes, held),
    )


@dataclass(frozen=True)
class Packed:
    """A recipe's effect. ``grown``: the grown network against its source, both under the recipe.
    ``source``: the source under the recipe against its own float32, for scale."""

    recipe: str
    robots: int
    steps: int
    grown: Difference
    source: Difference


def compare(
    source: Checkpoint,
    grown: Checkpoint,
    streams: Streams,
    recipe: str,
    progress: Progress | None = None,
) -> Packed:
    """Both networks packed by round to nearest under ``recipe``, on the reference operators."""
    small, exact = walk(source, streams, recipe=recipe), walk(source, streams)
    large = walk(grown, streams, progress, recipe)
    changed = difference(exact, small, f"float32, {recipe}")
    return Packed(recipe, *streams.shape, difference(small, large, recipe), changed)


@torch.inference_mode()
def difference(small: Walk, large: Walk, recipe: str | None) -> Difference:
    """How far ``large`` is from ``small``, both of the same streams."""
    expected, got = (w.network.action_head(w.hidden) for w in (small, large))
    actions = [w.network.action_head.decode(x) for w, x in ((small, expected), (large, got))]
    apart = (actions[0] - actions[1]).abs()
    first = apart[..., 0, :]
    return Difference(
        recipe=recipe,
        action=_largest(first),
        action_rms=float(first.nan_to_num(math.inf).square().mean().sqrt()),
        chunk=_largest(apart),
        logit=_largest((expected - got).abs()),
        logit_rms=float(expected.square().mean().sqrt()),
        modes=int((expected.argmax(-1) != got.argmax(-1)).sum()),
        selections=int((small.slots.sort(-1)[0] != large.slots.sort(-1)[0]).sum()),
    )


def _largest(apart: Tensor) -> float:
    """Infinite where a difference is not a number."""
    return float(apart.nan_to_num(math.inf).max())


def _failures(found: Difference, writes: list[Write], held: list[Matrix]) -> list[str]:
    failures = []
    if not found.action <= TOLERANCE:
        failures.append(f"actions differ by {found.action:.2e}, allowed are {TOLERANCE:g}")
    for matrix in held:
        if matrix.zeros >= MOST_ZEROS:
            failures.append(f"{matrix.name} holds {matrix.zeros:.1%} zeros")
        if matrix.zero_rows or matrix.zero_columns:
            failures.append(
                f"{matrix.name} has {matrix.zero_rows} zero rows, {matrix.zero_columns} columns"
            )
    silent = [i for i, w in enumerate(writes) if min(w.attention, w.mlp, w.changed) <= 0]
    if silent:
        failures.append(f"layers {silent} add nothing to the residual stream")
    return failures
