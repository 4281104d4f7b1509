"""Packing as a whole: what is chosen under a budget helps, or is not chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.models import tiny
from tests.train.recordings import recording
from wmrt.core.errors import UsageError
from wmrt.quant import RECIPES
from wmrt.quant.steps import Gptq
from wmrt.runtime.build import linears, to_checkpoint
from wmrt.train.packing import pack, saving
from wmrt.train.samples import load_samples

NVFP4 = RECIPES["nvfp4"]


def quiet(name: str) -> object:
    return lambda done, total, layer: None


def test_savings_are_the_bytes_that_packing_takes_off(tmp_path: Path, seed: int) -> None:
    checkpoint = tiny(seed)
    packed = pack(checkpoint, NVFP4, None, None, quiet)  # type: ignore[arg-type]
    stored = to_checkpoint(packed.network, packed.recipe, {})
    before, after = (
        sum(t.numel() * t.element_size() for t in made.tensors.values())
        for made in (checkpoint, stored)
    )
    assert before - after == sum(saving(checkpoint, name, NVFP4) for name in packed.layers)


def test_everything_fits_a_generous_budget(tmp_path: Path, seed: int) -> None:
    checkpoint = tiny(seed)
    calibration = load_samples(
        [recording(tmp_path / "drives")], checkpoint.schema, 2, windows=20, steps=16
    )
    recipe = NVFP4.with_(steps=(Gptq(),))
    told: list[str] = []

    def parts(name: str) -> object:
        told.append(name)
        return lambda done, total, layer: None

    packed = pack(checkpoint, recipe, calibration, "5x", parts)  # type: ignore[arg-type]
    found = packed.exclusion
    assert told == ["sensitivity", "checking", "packing"]
    assert found is not None and set(found.chosen) == {row["layer"] for row in found.costs}
    # All of it in bf16 is the float model but for what the sweep leaves out: activations' rounding.
    assert found.with_.hidden == found.with_.action == 0.0 < found.without.hidden
    assert packed.layers == {} and packed.recipe.exclude == found.chosen
    assert {m.recipe.name for m in linears(packed.network).values() if m.recipe} == {"bf16"}


def test_a_budget_needs_data(seed: int) -> None:
    with pytest.raises(UsageError, match="wmrt collect"):
        pack(tiny(seed), NVFP4, None, "1.1x", quiet)  # type: ignore[arg-type]
