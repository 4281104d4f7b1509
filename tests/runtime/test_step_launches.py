"""A step as a list of launches: a program that has the list alone makes the same step, and what the
list says of every operator is what the operator does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.kernels.triton.manifests import Memory, check, nearest, of_kernel, read, step_launched
from tests.kernels.triton.test_cubins import ops_of_no_step
from tests.runtime.models import states, tiny
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton.aot_cases import cases
from wmrt.kernels.triton.cubins import launch_of
from wmrt.kernels.triton.formulas import Grid
from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.packaged_step import Step
from wmrt.kernels.triton.recorded import Launch
from wmrt.model.network import Network
from wmrt.runtime.build import build_network
from wmrt.runtime.step_launches import Blueprint, named_weights, preset_blueprint, preset_steps
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_state import TritonState


@pytest.fixture(scope="module")
def steps() -> dict[int, Step]:
    """Of preset `small`, by robots; one capability whose launches depend on one another, one
    without."""
    made = preset_blueprint("small", "nvfp4")
    several = ((1, 87), (3, 110), (16, 110))
    return {robots: made.step("step", capability, robots) for robots, capability in several}


def launches(step: Step) -> list[Launch]:
    return [action for action in step.actions if isinstance(action, Launch)]


def types(signature: Mapping[str, str]) -> dict[str, str]:
    """Without pointers that are not followed, or not always."""
    return {name: kind for name, kind in signature.items() if not name.startswith("next_")}


@pytest.mark.parametrize("robots", [1, 3, 16])
def test_every_operator_launches_what_the_manifest_says(
    steps: dict[int, Step], robots: int
) -> None:
    step = steps[robots]
    for launch in launches(step):
        check(launch, nearest(launch), robots)
    kinds = {launch.name for launch in launches(step)}
    if robots > 1:  # from two robots on the norm is a launch of its own
        every = {case.kernel.fn.__name__ for case in cases()}
        assert kinds | ops_of_no_step().keys() == every, "the others: see test_cubins"
    assert {launch.dependent for launch in launches(step)[1:]} == {step.capability >= 90}
    assert not launches(step)[0].dependent


def test_a_wrong_grid_or_shape_is_seen(steps: dict[int, Step]) -> None:
    for launch in {each.name: each for each in launches(steps[3])}.values():
        case = nearest(launch)
        assert case.grid is not None
        longer = Grid("1")
        longer.axes = (("add", case.grid.axes[0], 1), *case.grid.axes[1:])
        with pytest.raises(AssertionError):
            check(launch, replace(case, grid=longer), 3)
        name = next(n for n, a in case.arrays.items() if a.role in ("output", "state"))
        array = case.arrays[name]
        wider = replace(array, shape=(*array.shape[:-1], ("add", array.shape[-1], 1 << 20)))
        with pytest.raises(AssertionError):
            check(launch, replace(case, arrays={**case.arrays, name: wider}), 3)


def test_cases_of_the_preset_are_what_its_step_launches(steps: dict[int, Step]) -> None:
    """Where constants are the same, so are warps, types and what is known to be aligned."""
    same = set()
    for launch in launches(steps[1]):
        for case in of_kernel(launch):
            if {**case.constants, "NEXT": 0} == {**launch.constants, "NEXT": 0}:
                assert case.warps == launch.warps and not case.options, case.name
                assert types(case.signature) == types(launch.signature()), case.name
                assert set(case.aligned or ()) <= set(launch.aligned()), case.name
                same.add(case.name)
    assert {name.split(".")[0] for name in same} >= {
        *("state_fusion_token", "transition_select_parts", "transition_select_slots"),
        *("norm_qkv_rope_store", "norm_gate_up", "gemv_residual", "transition_attention_int8"),
    }


def one_step(state: TritonState, network: Network, seed: int) -> None:
    rng = np.random.default_rng(seed)
    given = network.schema.encode(states(network.schema, 1, seed)[0], strict=False)
    state.rows["codes"][0], state.rows["values"][0] = given.codes, given.values
    state.rows["previous"][0] = rng.uniform(-1, 1, len(network.actions))


def numbers_of(model: TritonModel) -> dict[str, float]:
    """What a checkpoint has beside tensors."""
    parts = ("qkv", "out", "gate_up", "down")
    found = {
        f"layers.{i}.{name}.global_scale": getattr(layer, name).global_scale
        for i, layer in enumerate(model.layers)
        for name in parts
    }
    return {**found, "decode.reward_scale": model.decode[2]}


@torch.inference_mode()
def test_the_list_alone_makes_the_step_that_operators_make(seed: int) -> None:
    """A second step, which looks back: weights, ring and inputs go into the buffers of the list,
    its launches run in the interpreter one after another. As in test_step: codes may tip over where
    a sum is rounded otherwise."""
    checkpoint = tiny(seed)
    network, emptied = (
        build_network(checkpoint, "nvfp4", torch.device("cpu")).network for _ in range(2)
    )
    model = TritonModel(network)
    made = Blueprint(emptied, emptied.config).step("tiny", 90)
    step = read(made.described())
    entries = {case.name: read(launch_of(case)) for case in made.cases()}
    kernels = {case.name: case.kernel for case in made.cases()}
    state = TritonState(network, model)
    one_step(state, network, seed)
    state.run()
    one_step(state, network, seed + 1)
    memory = Memory(step)
    for name, tensor in named_weights(model):
        memory.tensors[name].copy_(tensor)
    for name, tensor in state.ring.tensors().items():
        memory.tensors[f"ring.{name}"].copy_(tensor)
    memory.blocks["sent"].copy_(state.sent_host)
    assert step["host"] == {"sent": "in", "got": "out"}
    state.run()
    with repaired():
        step_launched(step, entries, kernels, memory, numbers_of(model))
    for name in ("hidden", "logits", "outputs", "chunk"):
        mine, theirs = memory.tensors[name], state.arrays[name]
        off = float((mine - theirs).square().mean().sqrt() / theirs.square().mean().sqrt())
        assert off < 0.05, f"{name} is off by {off:.1e} of its size"
    assert torch.equal(memory.tensors["ring.step"], state.ring.step)
    assert torch.equal(memory.tensors["slots"], state.arrays["slots"])
    roles = {buffer["name"]: buffer["role"] for buffer in step["buffers"]}
    assert roles["sent"] == "input" and roles["got"] == "output" and roles["x"] == "scratch"
    assert roles["ring.keys"] == "state" and roles["layers.1.down.words"] == "weights"


def test_what_cannot_be_listed_is_told() -> None:
    with pytest.raises(UsageError, match="preset"):
        preset_steps("enormous", "nvfp4", [87])
    with pytest.raises(UnsupportedError, match="no kernels are chosen"):
        preset_steps("small", "nvfp4", [70])
    with pytest.raises(UnsupportedError, match="the fused step multiplies"):
        preset_steps("small", "nvfp4-a16", [87])


def test_a_step_that_calls_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(state: TritonState) -> None:
        state.arrays["x"].mul_(2)

    monkeypatch.setattr(TritonState, "compute", compute)
    with pytest.raises(UnsupportedError, match=r"aten\.mul_.*neither a launch nor an addition"):
        preset_steps("small", "nvfp4", [87])
