"""Measured errors are those of the layer and of the model, against values computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.quant.toy_target import ToyStage, inputs, toy
from wmrt.core.errors import QuantizationError
from wmrt.kernels import linear
from wmrt.quant import RECIPES, quantize
from wmrt.quant.calibrate import calibrate
from wmrt.quant.meter import Meter, relative
from wmrt.quant.steps import Awq, Gptq

NVFP4 = RECIPES["nvfp4"]
OP = linear("nvfp4", "int8-g32")


def test_layers_are_measured_alone_and_the_model_as_a_whole(seed: int) -> None:
    target, held = toy(seed), inputs(seed + 1, 64)
    meter = Meter(target, NVFP4, held)
    calibrate(target, NVFP4, inputs(seed), watch=meter)
    x, moved = held, held
    for stage in target.parts:
        a, b = stage.stored.values()
        inner = torch.relu(x @ a.T)
        for name, given, weight in zip(stage.stored, (x, inner), (a, b), strict=True):
            exact, packed = given @ weight.T, quantize(weight, "nvfp4")
            row = meter.layers[name]
            expected = float((OP(given, packed) - exact).norm() / exact.norm())
            assert row.output_error == pytest.approx(expected, rel=1e-4)
            assert row.nearest_error == row.output_error
            change = float((packed.dequantize() - weight).norm() / weight.norm())
            assert row.relative_error == pytest.approx(change, rel=1e-4)
        x = x + inner @ b.T
        inner = torch.relu(OP(moved, stage.packed[f"{stage.name}.a"]))
        moved = moved + OP(inner, stage.packed[f"{stage.name}.b"])
    assert meter.model is not None
    change = moved - x
    assert meter.model.hidden == pytest.approx(float(change.square().mean().sqrt()), rel=1e-3)
    actions = float(change[..., :2].square().mean().sqrt())
    assert meter.model.action == pytest.approx(actions, rel=1e-3)


def scaled_apart(seed: int) -> tuple[ToyStage, Tensor, Meter]:
    """A stage whose rows AWQ scaled apart, inputs it has not seen, and what was measured.

    About 3 of 100 models need next to no scaling (their spread is below 1.5): take the next one.
    """
    for attempt in range(20):
        target, held = toy(seed + attempt), inputs(seed + attempt + 1, 64)
        stage = target.parts[0]
        with torch.no_grad():
            stage.stored["s0.a"][:8] *= 20  # loud inner channels for AWQ to act on
        meter = Meter(target, NVFP4, held)
        calibrate(target, NVFP4.with_(steps=(Awq(),)), inputs(seed + attempt), watch=meter)
        scale = stage.divided.get("s0.a")
        if scale is not None and float(scale.max() / scale.min()) > 1.5:
            return stage, held, meter
    raise AssertionError("AWQ scaled none of 20 models")


def test_scaled_outputs_are_compared_as_they_were(seed: int) -> None:
    """Scaling rows apart must not change a layer's error by weighing its rows anew."""
    stage, held, meter = scaled_apart(seed)
    exact = held @ stage.stored["s0.a"].T
    found = OP(held, stage.packed["s0.a"]) * stage.divided["s0.a"]
    expected = float((found - exact).norm() / exact.norm())
    assert meter.layers["s0.a"].output_error == pytest.approx(expected, rel=1e-3)


def test_calibrated_rounding_beats_nearest_on_inputs_it_has_not_seen(seed: int) -> None:
    target = toy(seed)
    meter = Meter(target, NVFP4, inputs(seed)[:64])
    calibrate(target, NVFP4.with_(steps=(Gptq(),)), inputs(seed)[64:], watch=meter)
    for row in meter.layers.values():
        assert row.output_error is not None and row.nearest_error is not None
    mean = [sum(getattr(row, key) for row in meter.layers.values()) for key in
            ("output_error", "nearest_error")]  # fmt: skip
    assert mean[0] < 0.85 * mean[1]


def test_without_inputs_only_weights_are_measured(seed: int) -> None:
    target = toy(seed, keep=("s0.a",))
    meter = Meter(target, NVFP4)
    calibrate(target, NVFP4, watch=meter)
    assert set(meter.layers) == {"s0.b", "s1.a", "s1.b"} and meter.model is None
    for row in meter.layers.values():
        assert row.output_error is None and row.relative_error is not None


def test_relative() -> None:
    zero, one = torch.zeros(2, 3), torch.ones(2, 3)
    assert relative(one, zero) is None and relative(one, one) == 0.0
    weights = torch.tensor([1.0, 0.0, 0.0])
    bent: Tensor = one + torch.tensor([0.5, 7.0, 7.0])
    assert relative(bent, one, weights) == pytest.approx(0.5)


def test_a_model_not_walked_to_its_end_has_no_error(seed: int) -> None:
    target = toy(seed)
    with pytest.raises(QuantizationError, match="walked to its end"):
        _ = Meter(target, NVFP4, inputs(seed)).model
