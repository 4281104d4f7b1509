"""A whole tiny step by the kernels themselves, against the one by the operators on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.fused import HOW
from tests.runtime.models import states, tiny
from wmrt.kernels.triton import (
    gemv_residual,
    norm_gate_up,
    norm_qkv_rope_store,
    transition_attention,
)
from wmrt.kernels.triton.action_decode import action_decode
from wmrt.kernels.triton.consequences import consequences
from wmrt.kernels.triton.dense import dense
from wmrt.kernels.triton.fused_checks import Matrix
from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.norm import rms_norm_to
from wmrt.kernels.triton.state_fusion import state_fusion
from wmrt.kernels.triton.transition_select import transition_select
from wmrt.model.network import Network
from wmrt.runtime.build import build_network
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_state import TritonState


def _qkv(x: Any, norm: Any, eps: Any, w: Any, s: Any, form: Any, g: Any, *rest: Any) -> None:
    norm_qkv_rope_store.launch(HOW, x, norm, eps, Matrix(w, s, form, g), *rest)


def _gate_up(x: Any, norm: Any, eps: Any, w: Any, s: Any, form: Any, g: Any, *rest: Any) -> None:
    norm_gate_up.launch(HOW, x, norm, eps, Matrix(w, s, form, g), *rest)


def _residual(codes: Any, factors: Any, w: Any, s: Any, form: Any, g: Any, *rest: Any) -> None:
    gemv_residual.launch(HOW, codes, factors, Matrix(w, s, form, g), *rest)


KERNELS = SimpleNamespace(
    state_fusion=state_fusion,
    transition_select=transition_select,
    norm_qkv_rope_store=_qkv,
    transition_attention_int8=transition_attention.transition_attention_int8,
    gemv_residual=_residual,
    norm_gate_up=_gate_up,
    rms_norm_to=rms_norm_to,
    dense=dense,
    action_decode=action_decode,
    consequences=consequences,
)


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
