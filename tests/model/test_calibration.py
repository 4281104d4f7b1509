"""A network as calibration target: stages that are its forward pass, a result that runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tests.model.networks import build, stream
from tests.runtime.models import tiny
from wmrt.core.errors import CheckpointError, QuantizationError, UsageError
from wmrt.model.calibration import NetworkTarget
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.network import Network
from wmrt.model.trunk import Block
from wmrt.quant import RECIPES, get_recipe
from wmrt.quant.calibrate import Outputs, calibrate
from wmrt.quant.meter import Meter
from wmrt.quant.sensitivity import sweep
from wmrt.quant.steps import Awq, Clip, Gptq, Hadamard, SmoothQuant
from wmrt.runtime.build import build_network, float_network, to_checkpoint

CPU = torch.device("cpu")
NVFP4 = RECIPES["nvfp4"]


@dataclass(frozen=True)
class Inputs:
    codes: Tensor
    values: Tensor
    previous: Tensor


def drawn(network: Network, seed: int, windows: int = 6, steps: int = 24) -> Inputs:
    return Inputs(*stream(network, windows, steps, seed))


def kept(name: str) -> bool:
    return name.startswith("action_head.")


def walk(target: NetworkTarget, given: Any, seed: int | None = None) -> Outputs:
    for stage in target.stages():
        stage.open()
        if seed is not None:
            stage.rotate(seed)
        given = stage.run(given, lambda name, x: x)
    return cast(Outputs, given)


@pytest.mark.parametrize("selector", ["learned", "full", "recent", "random"])
def test_its_stages_are_the_forward_pass(selector: str, seed: int) -> None:
    checkpoint = tiny(seed, selector=selector)
    network = float_network(checkpoint).eval()
    inputs = drawn(network, seed)
    found = walk(NetworkTarget(checkpoint, kept), inputs)
    with torch.no_grad():
        draw = torch.Generator().manual_seed(0)
        hidden, _ = network(inputs.codes, inputs.values, inputs.previous, draw)
        chunk = network.action_head.decode(network.action_head(hidden))
    assert torch.equal(found.chunk, chunk)
    # hidden leaves the final norm's weight out; multiplying it back rounds once
    assert torch.allclose(found.hidden * network.norm.weight, hidden, rtol=2.0**-22, atol=0)


def test_rotated_outputs_come_back_in_the_float_models_basis(seed: int) -> None:
    checkpoint = tiny(seed, past=15)
    inputs = drawn(float_network(checkpoint), seed)
    plain = walk(NetworkTarget(checkpoint, kept), inputs)
    rotated = walk(NetworkTarget(checkpoint, kept), inputs, seed)
    # The token's parts are stored in bfloat16, each element rounded by at most 2^-9 of itself: a
    # few of those, over what two layers and a norm make of them.
    error = float((rotated.hidden - plain.hidden).square().mean().sqrt())
    assert 0 < error < 8 * 2.0**-9


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "w4a8", "fp8", "int8", "nvfp4-a16"])
def test_without_steps_it_is_the_network_packed_at_load(name: str, seed: int) -> None:
    checkpoint, recipe = tiny(seed), get_recipe(name)
    target = NetworkTarget(checkpoint, kept)
    calibrate(target, recipe)
    found = to_checkpoint(target.network, recipe, {}).tensors
    expected = to_checkpoint(build_network(checkpoint, recipe, CPU).network, recipe, {}).tensors
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "w4a8"])
@pytest.mark.parametrize(
    "steps", [(Hadamard(), Gptq()), (Awq(grid=4), Clip(), Gptq()), (Hadamard(5), SmoothQuant(0.4))]
)
def test_what_was_measured_is_what_is_stored(name: str, steps: Any, seed: int) -> None:
    """The packed network, through its real operators and back from its own tensors, gives the
    outputs that the meter saw."""
    checkpoint, recipe = tiny(seed, past=15), get_recipe(name).with_(steps=steps)
    network = float_network(checkpoint).eval()
    used, held = drawn(network, seed), drawn(network, seed + 1)
    target = NetworkTarget(checkpoint, kept)
    meter = Meter(target, recipe, held)
    packed = calibrate(target, recipe, used, watch=meter)
    stored = build_network(to_checkpoint(target.network, recipe, {}), None, CPU).network
    assert {n: m for n, m in packed.items() if kept(n)} == {} and len(packed) == 8
    with torch.no_grad():
        hidden, _ = stored(held.codes, held.values, held.previous)
        chunk = stored.action_head.decode(stored.action_head(hidden))
        exact, _ = network(held.codes, held.values, held.previous)
        action = chunk - network.action_head.decode(network.action_head(exact))
    assert meter.model is not None
    # Float32 sums in another order may move an activation over a rounding threshold now and then.
    expected = float(action.square().mean().sqrt())
    assert meter.model.action == pytest.approx(expected, rel=0.05, abs=1e-4)
    assert 0 < meter.model.hidden < 1.0  # of two that have nothing in common: 1.4


def test_gptq_beats_nearest_on_windows_it_has_not_seen(seed: int) -> None:
    checkpoint = tiny(seed)
    network = float_network(checkpoint)
    recipe = NVFP4.with_(steps=(Hadamard(), Gptq()))
    target = NetworkTarget(checkpoint, kept)
    meter = Meter(target, recipe, drawn(network, seed + 1))
    calibrate(target, recipe, drawn(network, seed, windows=32), watch=meter)
    rows = meter.layers.values()
    ours = sum(row.output_error or 0 for row in rows)
    assert ours < 0.9 * sum(row.nearest_error or 0 for row in rows)


def open_layers(network: Network) -> int:
    """Layers that hold float weights now."""
    blocks = [cast(Block, block) for block in network.blocks]
    weights = [block.qkv.weight for block in blocks]
    return sum(w is not None and not w.is_meta for w in weights)


def test_one_layer_is_in_memory_and_the_checkpoint_is_not_touched(seed: int) -> None:
    checkpoint = tiny(seed, layers=3)
    before = {name: tensor.clone() for name, tensor in checkpoint.tensors.items()}
    inputs = drawn(float_network(checkpoint), seed)
    target = NetworkTarget(checkpoint, kept)
    recipe = NVFP4.with_(steps=(Hadamard(), Gptq()))
    counts: list[int] = []
    calibrate(target, recipe, inputs, lambda *now: counts.append(open_layers(target.network)))
    assert set(counts) == {1} and open_layers(target.network) == 0
    swept = NetworkTarget(checkpoint, kept)
    sweep(swept, recipe, inputs, [frozenset(["blocks.0.out"])])
    assert open_layers(swept.network) == 0
    assert all(torch.equal(checkpoint.tensors[name], before[name]) for name in before)


def broken(checkpoint: Checkpoint, name: str, value: float) -> Checkpoint:
    tensors = {**checkpoint.tensors, name: checkpoint.tensors[name].clone()}
    tensors[name].view(-1)[3] = value
    return replace(checkpoint, tensors=tensors)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("name", ["blocks.1.down.weight", "blocks.0.mlp_norm.weight",
                                  "fusion.memory.table", "action_head.out.weight"])  # fmt: skip
def test_what_is_not_finite_is_named(name: str, value: float, seed: int) -> None:
    with pytest.raises(QuantizationError, match=f"^{name} holds NaN or infinity"):
        calibrate(NetworkTarget(broken(tiny(seed), name, value), kept), NVFP4)


def test_other_tensors_than_the_networks_are_refused(seed: int) -> None:
    checkpoint = tiny(seed)
    fewer = {n: t for n, t in checkpoint.tensors.items() if n != "blocks.1.out.weight"}
    with pytest.raises(CheckpointError, match=r"missing tensors: blocks\.1\.out\.weight"):
        NetworkTarget(replace(checkpoint, tensors=fewer), kept)
    with pytest.raises(CheckpointError, match="unknown keys"):
        NetworkTarget(replace(checkpoint, model={**checkpoint.model, "extra": 1}), kept)
    packed = to_checkpoint(build_network(checkpoint, "nvfp4", CPU).network, NVFP4, {})
    with pytest.raises(UsageError, match="packed already"):
        NetworkTarget(packed, kept)


def test_inputs_may_be_of_any_schema(seed: int) -> None:
    """A schema without numbers: nothing to interpolate, and a table of categories only."""
    from tests.model.networks import schemas

    network = build(seed, schemas()["no numerics"])
    checkpoint = to_checkpoint(network, None, {})
    target = NetworkTarget(checkpoint, kept)
    packed = calibrate(target, NVFP4.with_(steps=(Hadamard(), Gptq())), drawn(network, seed))
    assert len(packed) == 8
