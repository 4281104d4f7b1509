"""A whole tiny step by the kernels themselves, against the one by the operators on the CPU."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.kernels.fused import HOW
from tests.runtime.models import states, tiny
from wmrt.kernels.triton import ops_decode, ops_fused, ops_heads, ops_state
from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.launchers import LAUNCHERS
from wmrt.model.network import Network
from wmrt.runtime.build import build_network
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_state import TritonState

assert ops_decode and ops_fused and ops_heads and ops_state  # they register launchers
KERNELS = SimpleNamespace(**{n: functools.partial(launch, HOW) for n, launch in LAUNCHERS.items()})


def step(state: TritonState, network: Network, first: int, seed: int) -> None:
    """One step of as many robots as there are, whose states are those from `first` on."""
    rng = np.random.default_rng(seed)
    for row, given in enumerate(states(network.schema, first + state.robots, seed)[first:]):
        read = network.schema.encode(given, strict=False)
        state.rows["codes"][row], state.rows["values"][row] = read.codes, read.values
        state.rows["previous"][row] = rng.uniform(-1, 1, len(network.actions))
    state.run()


@pytest.mark.parametrize("recipe", ["nvfp4", pytest.param("w4a8", marks=pytest.mark.full)])
@torch.inference_mode()
def test_kernels_make_the_step_that_operators_make(recipe: str, seed: int) -> None:
    """Two steps: the second looks back. Codes may tip over where a sum is rounded otherwise, which
    moves a result by a hundredth of its size."""
    network = build_network(tiny(seed), recipe, torch.device("cpu")).network
    model = TritonModel(network)
    mine, theirs = TritonState(network, model, 1, KERNELS), TritonState(network, model)
    with repaired():
        for index in range(2):
            step(mine, network, index, seed + index)
            step(theirs, network, index, seed + index)
            for name in ("hidden", "logits", "outputs"):
                a, b = mine.arrays[name], theirs.arrays[name]
                off = float((a - b).square().mean().sqrt() / b.square().mean().sqrt())
                assert off < 0.05, f"step {index}: {name} is off by {off:.1e} of its size"
            for name, tensor in mine.ring.tensors().items():  # no difference is to grow
                tensor.copy_(theirs.ring.tensors()[name])


@pytest.mark.full
@torch.inference_mode()
def test_a_robot_has_the_same_bits_in_every_batch(seed: int) -> None:
    network = build_network(tiny(seed), "nvfp4", torch.device("cpu")).network
    model = TritonModel(network)
    alone, two = TritonState(network, model, 1, KERNELS), TritonState(network, model, 2, KERNELS)
    with repaired():
        for index in range(2):
            step(two, network, index, seed)
            for name in ("codes", "values", "previous"):
                alone.rows[name][0] = two.rows[name][1]
            alone.run()
            for name in ("hidden", "logits", "outputs", "slots"):
                assert torch.equal(two.arrays[name][1], alone.arrays[name][0]), name
            assert np.array_equal(two.rows["following"][1], alone.rows["following"][0])


@pytest.mark.full
@torch.inference_mode()
def test_some_robots_of_a_group_have_the_bits_that_each_has_alone(seed: int) -> None:
    """Of three rings, in steps of two, one and two rows; the second looks back."""
    network = build_network(tiny(seed, layers=1), "nvfp4", torch.device("cpu")).network
    model, ring = TritonModel(network), network.new_ring(3)
    alone = [TritonState(network, model, 1, KERNELS) for _ in range(3)]
    with repaired():
        for index, chosen in enumerate([(2, 0), (0,), (1, 2)]):
            some = TritonState(network, model, len(chosen), KERNELS, ring)
            some.rows["robots"][:] = chosen
            step(some, network, index, seed + index)
            for row, robot in enumerate(chosen):
                own = alone[robot]
                for name in ("codes", "values", "previous"):
                    own.rows[name][0] = some.rows[name][row]
                own.run()
                for name in ("hidden", "logits", "outputs", "bias"):
                    assert torch.equal(some.arrays[name][row], own.arrays[name][0]), name
                for name in ("chunk", "following", "continues"):
                    assert np.array_equal(some.rows[name][row], own.rows[name][0]), name
    for robot, own in enumerate(alone):
        for name, tensor in ring.tensors().items():
            mine = tensor.narrow(1 if name in ("keys", "values") else 0, robot, 1)
            assert torch.equal(mine, own.ring.tensors()[name]), (robot, name)
