"""Whole steps on a fake GPU, for `wmrt.runtime.graph_lint` to look at."""

from __future__ import annotations

from collections.abc import Callable

import torch

from wmrt.core.types import ActionSpec
from wmrt.kernels.triton.linear import LAYOUT
from wmrt.model.config import ModelConfig
from wmrt.model.network import Network
from wmrt.model.schema import StateSchema
from wmrt.quant import Recipe
from wmrt.quant.layouts import LaidOut
from wmrt.runtime.bench.gpu_network import random_network
from wmrt.runtime.build import linears, plan_recipes
from wmrt.runtime.fake_cuda import fake_like, on_fake_cuda, over_tensors
from wmrt.runtime.graph_lint import Subject
from wmrt.runtime.static_step import StaticStep
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_state import TritonState

#: What a step of `Network` is known to do that a captured one should not: torch's operators give
#: back new tensors. The fused operators write into buffers they are given.
EAGER_ALLOCATES = (
    "every operator of torch that is no view: embeddings, norms, projections, rotations, gathered "
    "keys and values, softmax, heads, decoding"
)


def fake_network(
    schema: StateSchema, config: ModelConfig, actions: ActionSpec, recipe: Recipe
) -> Network:
    """A network on a fake GPU, its 4-bit weights read by triton's operators and the others by
    torch's. Call it inside `fake_cuda`."""
    network = Network.hollow(schema, config, actions).eval()
    plan = plan_recipes(network, recipe)
    for name, module in linears(network).items():
        own = plan[name]
        implementation, layout = ("triton", LAYOUT) if own.packs else ("reference", "canonical")
        module.expect(own, implementation, layout)
    on_fake_cuda(network)
    for name, module in linears(network).items():
        if module.weight is None:  # reading the global scale of a real one is done when it loads
            shape = (module.out_features, module.in_features)
            held = dict(module.named_buffers(recurse=False))
            module._packed = LaidOut(plan[name].weight_format, shape, LAYOUT, held, 1.0)
    return network


def eager_subject(
    schema: StateSchema,
    config: ModelConfig,
    actions: ActionSpec,
    recipe: Recipe,
    batch: int = 1,
) -> Subject:
    """`StaticStep` of ``batch`` robots, from encoded state to the predicted consequences. Call it
    inside `fake_cuda`."""
    step = StaticStep(fake_network(schema, config, actions, recipe), batch)
    return Subject(step.run, step.buffers)


def fused_subject(
    schema: StateSchema,
    config: ModelConfig,
    actions: ActionSpec,
    recipe: Recipe,
    batch: int = 1,
    group: int | None = None,
) -> Callable[[], Subject]:
    """Makes `TritonState` of ``batch`` robots, of a group of so many if one is given, without its
    two copies from and to the host, when it is called inside `fake_cuda`. The weights of one layer
    are real until then: which type they have depends on their values."""
    network = random_network(schema, config.with_(layers=1), actions, recipe, torch.device("cpu"))
    model = TritonModel(network)

    def make() -> Subject:
        network.config = config
        on_fake_cuda(network)
        for name, value in vars(model).items():
            if name != "network":
                setattr(model, name, over_tensors(value, fake_like))
        model.layers = model.layers * config.layers
        ring = None if group is None else network.new_ring(group)
        state = TritonState(network, model, batch, group=ring)
        return Subject(state.compute, {**state.buffers, **state.arrays})

    return make
