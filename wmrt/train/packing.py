"""From a float checkpoint to a packed one: exclusions within a budget, calibration, measurement."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from wmrt.core.errors import UsageError
from wmrt.model.calibration import NetworkTarget
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.network import Network
from wmrt.quant import Recipe
from wmrt.quant.calibrate import Progress, calibrate, require_possible, to_pack
from wmrt.quant.ledger import estimated_entry
from wmrt.quant.meter import LayerReport, Meter, ModelError
from wmrt.quant.sensitivity import Cost, parse_budget, pick, sweep
from wmrt.runtime.build import KEEP_BF16
from wmrt.train.samples import Calibration

#: Windows that exclusions are chosen on. Every linear of the model is one variant more to run.
SWEPT = 16


@dataclass(frozen=True)
class Exclusion:
    """What the sensitivity sweep found under a budget.

    costs: one per linear, as JSON data. chosen: left in bf16. without, with_: error of the model
    with everything packed, and with ``chosen`` left out; where that was no better, ``chosen`` is
    empty and both are the same.
    """

    budget: int
    costs: tuple[dict[str, Any], ...]
    chosen: tuple[str, ...]
    without: ModelError
    with_: ModelError

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Packed:
    """The packed network and what was measured on the way."""

    network: Network
    recipe: Recipe
    layers: dict[str, LayerReport]
    model: ModelError | None
    exclusion: Exclusion | None
    provenance: dict[str, Any]


def pack(
    source: Checkpoint,
    recipe: Recipe,
    calibration: Calibration | None,
    budget: str | None,
    progress: Callable[[str], Progress],
) -> Packed:
    """Pack ``source`` under ``recipe``, layer by layer.

    Args:
        calibration: windows to calibrate and to measure on; None for a recipe that reads none.
        budget: what the tensors may take in all (`parse_budget`); linears that fit stay bf16.
        progress: gives the progress callback of a part, by its name.

    Raises:
        UsageError: data is needed and there is none; a packed source; a budget that is none.
        QuantizationError: something is not finite or cannot be rounded; it names the layer.
    """
    begin = time.monotonic()
    require_possible(recipe, calibration)
    exclusion = None
    if budget is not None:
        exclusion = _exclude(source, recipe, calibration, budget, progress)
        recipe = recipe.with_(exclude=(*recipe.exclude, *exclusion.chosen))
    target = _target(source)
    meter = Meter(target, recipe, None if calibration is None else calibration.held)
    used = None if calibration is None else calibration.used
    calibrate(target, recipe, used, progress("packing"), meter)
    provenance = {
        "steps": [step.to_json() for step in recipe.steps],
        "data": None if calibration is None else calibration.to_json(),
        "error": None if meter.model is None else asdict(meter.model),
        "seconds": round(time.monotonic() - begin, 1),
        "torch": torch.__version__,
    }
    return Packed(target.network, recipe, meter.layers, meter.model, exclusion, provenance)


def _target(source: Checkpoint) -> NetworkTarget:
    return NetworkTarget(source, _kept)


def _kept(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in KEEP_BF16)


def _exclude(
    source: Checkpoint,
    recipe: Recipe,
    calibration: Calibration | None,
    budget: str,
    progress: Callable[[str], Progress],
) -> Exclusion:
    """Sweep, pick, and check the pick as a whole."""
    if calibration is None:
        raise UsageError(
            "--budget measures layers on recorded episodes; give --data DIR "
            "(wmrt collect records them)"
        )
    samples = calibration.used.first(SWEPT)
    names = to_pack(_target(source), recipe)
    saved = {name: saving(source, name, recipe) for name in names}
    fully = sum(t.numel() * t.element_size() for t in source.tensors.values()) - sum(saved.values())
    limit = parse_budget(budget, fully)
    single, everything = {name: frozenset([name]) for name in names}, frozenset(names)
    variants = [*single.values(), everything]
    errors = sweep(_target(source), recipe, samples, variants, progress("sensitivity"))
    costs = [Cost(name, errors[single[name]], saved[name]) for name in names]
    chosen = pick(costs, limit - fully)
    rest = everything - set(chosen)
    found = sweep(_target(source), recipe, samples, [rest], progress("checking"))[rest]
    if found.hidden >= errors[everything].hidden:
        chosen, found = [], errors[everything]
    rows = tuple(
        {"layer": c.name, "bytes": c.extra, **asdict(c.error), "bf16": c.name in chosen}
        for c in costs
    )
    return Exclusion(limit, rows, tuple(chosen), errors[everything], found)


def saving(source: Checkpoint, name: str, recipe: Recipe) -> int:
    """Bytes that packing one linear saves, padding of other layouts not counted."""
    stored = source.tensors[f"{name}.weight"]
    shape = (stored.shape[0], stored.shape[1])
    packed = estimated_entry(name, recipe.weight_format, shape).total.bytes
    assert packed is not None  # an estimate from the format alone is never missing
    return stored.numel() * stored.element_size() - packed
