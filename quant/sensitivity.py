"""Which linears to leave in bf16: those whose rounding hurts the model most, byte for byte.

`sweep` walks the model once with many variants side by side. Each variant is a set of linears that
are rounded while all others stay float, and its error is that of the model's outputs. Variants
share the float stream up to the first stage that tells them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wmrt.core.errors import UsageError
from wmrt.quant.calibrate import (
    Progress,
    Stage,
    Target,
    named_round,
    record,
    require_possible,
    to_pack,
    transform,
)
from wmrt.quant.meter import ModelError, emulated, model_error
from wmrt.quant.recipe import Recipe

Variant = frozenset[str]


@torch.no_grad()
def sweep(
    target: Target,
    recipe: Recipe,
    batches: Any,
    variants: Iterable[Variant],
    progress: Progress | None = None,
) -> dict[Variant, ModelError]:
    """Error of the model's outputs under each variant, the linears in it rounded by ``recipe``.

    Every weight is rounded on float activations, so that one linear's codes are the same in every
    variant. The target is walked and nothing is kept. Raises what `calibrate` raises.
    """
    require_possible(recipe, batches)
    names = to_pack(target, recipe)
    streams: dict[Variant, Any] = dict.fromkeys(variants)  # None: still the float's
    clean, done = batches, 0
    for stage in target.stages():
        stage.open()
        transform(stage, clean, recipe)
        inputs = record(stage, clean)
        mine = [name for name in stage.linears() if name in names]
        rounded = {n: named_round(n, stage.weight(n), inputs[n], recipe) for n in mine}
        weights = {name: weight.dequantize() for name, weight in rounded.items()}
        for variant, stream in streams.items():
            if stream is not None or variant & set(mine):
                given = clean if stream is None else stream
                streams[variant] = _run(stage, given, variant, weights, recipe)
        clean = stage.run(clean, lambda name, x: x)
        stage.discard()
        done += len(mine)
        if progress is not None and mine:
            progress(done, len(names), mine[-1])
    return {v: model_error(clean if s is None else s, clean) for v, s in streams.items()}


def _run(
    stage: Stage, stream: Any, variant: Variant, weights: Mapping[str, Any], recipe: Recipe
) -> Any:
    """The stage's outputs with the linears of ``variant`` rounded; the others as they were."""
    before = {name: stage.weight(name) for name in weights if name in variant}
    for name in before:
        stage.replace(name, weights[name])
    packed = emulated(variant, recipe)
    try:
        return stage.run(stream, lambda name, x: packed(name, x) if name in before else x)
    finally:
        for name, weight in before.items():
            stage.replace(name, weight)


@dataclass(frozen=True)
class Cost:
    """One linear: the model's error when only it is rounded, and bytes that bf16 would add."""

    name: str
    error: ModelError
    extra: int


def pick(costs: Sequence[Cost], room: int) -> list[str]:
    """Linears to leave in bf16 within ``room`` bytes: most squared error of the hidden state per
    byte first, skipping what no longer fits.

    Squared errors of different layers add up as long as they are small and independent, so this is
    the greedy solution of a knapsack; `wmrt.quant.sensitivity.sweep` of the result verifies it.
    """
    chosen, left = [], room
    for cost in sorted(costs, key=lambda c: c.error.hidden**2 / c.extra, reverse=True):
        if cost.extra <= left:
            chosen.append(cost.name)
            left -= cost.extra
    return chosen


def parse_budget(text: str, packed: int) -> int:
    """Bytes a checkpoint may take: ``1.1x`` times its fully packed size, or a number of bytes.

    Raises `UsageError` for anything else, and for a budget that the packed checkpoint exceeds.
    """
    factor = text.strip().lower()
    try:
        wanted = float(factor[:-1]) * packed if factor.endswith("x") else float(int(factor))
    except ValueError:
        wanted = math.nan
    if not math.isfinite(wanted):
        raise UsageError(
            f"budget {text!r}: give a factor of the fully packed size such as 1.1x, or bytes"
        )
    if wanted < packed:
        raise UsageError(
            f"budget {text!r} is {int(wanted):,} bytes; packed in full it takes {packed:,}"
        )
    return int(wanted)
