"""The walk: one stage at a time, every linear rounded on what the rounded ones before it give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.quant.toy_target import ToyStage, inputs, toy
from wmrt.core.errors import QuantizationError, UsageError
from wmrt.quant import RECIPES, quantize
from wmrt.quant import calibrate as module
from wmrt.quant.calibrate import calibrate, to_pack
from wmrt.quant.emulate import emulate_input
from wmrt.quant.steps import Awq, Clip, FourOverSix, Gptq, Hadamard, Rescale, SmoothQuant

NVFP4 = RECIPES["nvfp4"]


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "w4a8", "fp8", "int8"])
@pytest.mark.parametrize("with_data", [False, True])
def test_without_steps_it_rounds_to_nearest(name: str, with_data: bool, seed: int) -> None:
    target, recipe = toy(seed, keep=("s1.a",)), RECIPES[name]
    packed = calibrate(target, recipe, inputs(seed) if with_data else None)
    assert list(packed) == ["s0.a", "s0.b", "s1.b"]
    for stage in target.parts:
        for layer, held in stage.packed.items():
            expected = quantize(stage.stored[layer], recipe.weight_format)
            assert torch.equal(held.codes, expected.codes) and held is packed[layer]


def test_each_linear_is_rounded_on_what_the_rounded_ones_before_give(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []

    def spy(weight: Tensor, x: Tensor, recipe: Any) -> Any:
        seen.append(x.clone())
        return quantize(weight, recipe.weight_format)

    monkeypatch.setattr(module, "round_weight", spy)
    target, x = toy(seed, keep=("s0.b",)), inputs(seed)
    calibrate(target, NVFP4.with_(steps=(Gptq(),)), x)
    expected: list[Tensor] = []
    for stage in target.parts:
        weights = dict(stage.stored)
        streams = {}
        for layer, weight in stage.stored.items():
            given = x if layer.endswith("a") else torch.relu(streams["a"])
            if layer == "s0.b":  # kept
                weights[layer], given = weight.bfloat16().float(), given.bfloat16().float()
            else:
                expected.append(given)
                weights[layer] = quantize(weight, "nvfp4").dequantize()
                given = emulate_input(given, "int8-g32")
            streams[layer[-1]] = given @ weights[layer].T
        x = x + streams["b"]
    assert len(seen) == len(expected) == 3
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "w4a8"])
@pytest.mark.parametrize(
    "steps", [(Gptq(),), (Clip(), Gptq(), Rescale()), (Awq(), Gptq()), (SmoothQuant(),)]
)
def test_every_step_can_be_walked(name: str, steps: Any, seed: int) -> None:
    target = toy(seed)
    packed = calibrate(target, RECIPES[name].with_(steps=steps), inputs(seed))
    assert set(packed) == {"s0.a", "s0.b", "s1.a", "s1.b"}
    assert all(stage.packed and not stage.held for stage in target.parts)


def test_one_stage_is_open_at_a_time_and_progress_counts(seed: int) -> None:
    target = toy(seed, stages=3)
    told: list[tuple[int, int, str]] = []

    def progress(done: int, total: int, name: str) -> None:
        told.append((done, total, name))
        assert sum(bool(stage.held) for stage in target.parts) == 1

    calibrate(target, NVFP4.with_(steps=(Gptq(),)), inputs(seed), progress)
    assert told == [(i + 1, 6, n) for i, n in enumerate(to_pack(target, NVFP4))]
    assert [stage.opened for stage in target.parts] == [1, 1, 1]


def test_what_the_recipe_excludes_stays_bf16(seed: int) -> None:
    target, recipe = toy(seed), NVFP4.with_(exclude=("*.b",))
    assert list(calibrate(target, recipe, inputs(seed))) == ["s0.a", "s1.a"]


def test_four_over_six_is_walked_without_data(seed: int) -> None:
    packed = calibrate(toy(seed), NVFP4.with_(steps=(FourOverSix(),)))
    assert set(packed) == {"s0.a", "s0.b", "s1.a", "s1.b"}


@pytest.mark.parametrize("steps", [(Gptq(),), (Hadamard(), Clip())])
def test_missing_data_is_told_before_anything(steps: Any, seed: int) -> None:
    target = toy(seed)
    with pytest.raises(UsageError, match=f"{steps[-1].kind} read recorded episodes.*wmrt collect"):
        calibrate(target, NVFP4.with_(steps=steps))
    assert [stage.opened for stage in target.parts] == [0, 0]


def test_a_recipe_that_packs_nothing(seed: int) -> None:
    with pytest.raises(UsageError, match="bf16 packs nothing"):
        calibrate(toy(seed), RECIPES["bf16"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_names_its_layer(bad: float, seed: int) -> None:
    target: Any = toy(seed)
    target.parts[1].stored["s1.a"][3, 5] = bad
    with pytest.raises(QuantizationError, match=r"^s1\.a: the weight has 1 elements.*\[3, 5\]"):
        calibrate(target, NVFP4)
    x = inputs(seed)
    x[7, 2] = bad
    with pytest.raises(QuantizationError, match=r"^s0\.a: its inputs on the calibration windows"):
        calibrate(toy(seed), NVFP4, x)


def test_activations_that_overflow_name_the_layer_that_gets_them(seed: int) -> None:
    target = toy(seed)
    stage: ToyStage = target.parts[0]
    stage.stored["s0.a"] *= 1e12
    stage.stored["s0.b"] *= 1e27
    with pytest.raises(QuantizationError, match=r"^s1\.a: its inputs"):
        calibrate(target, NVFP4, inputs(seed))
