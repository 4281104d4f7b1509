"""Networks of random weights on a GPU, made in seconds: every layer holds the same numbers.

For speed only, as `wmrt.model.random_init`. A step reads all of it, whatever is in it; what is
packed on the CPU is one layer.
"""

from __future__ import annotations

import copy
import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wmrt.core.types import ActionSpec
from wmrt.kernels.triton.linear import LAYOUT
from wmrt.model.config import ModelConfig
from wmrt.model.linear import Linear
from wmrt.model.network import Network
from wmrt.model.schema import StateSchema
from wmrt.model.trunk import Block
from wmrt.quant import Recipe, get_recipe
from wmrt.runtime.build import linears, plan_recipes
from wmrt.runtime.capacity import ledger
from wmrt.runtime.static_step import CapturableStep, StaticStep
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_state import TritonState

PLAIN = "linear_bf16.torch"


class PlainLinear(nn.Module):
    """``x W^T`` in bfloat16 by torch's own matrix product, result float32: what a peer would run.

    `linear_bf16.reference` computes the same from slices of rows, for the sake of its bits: 11 000
    launches a step.
    """

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        assert linear.weight is not None  # of a float network
        self.recipe = get_recipe("bf16")  # what a fused step asks a layer of the heads for
        self.weight = nn.Parameter(linear.weight.detach().to(torch.bfloat16), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(torch.bfloat16), self.weight).float()


def random_network(
    schema: StateSchema,
    config: ModelConfig,
    actions: ActionSpec,
    recipe: Recipe,
    device: torch.device,
    seed: int = 0,
) -> Network:
    """A network on ``device`` that runs ``recipe``: on CUDA by triton's operators, else by the
    reference ones; what no recipe packs by torch's bfloat16."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(schema, config.with_(layers=1), actions).eval()
    network.config = config
    block = cast(Block, network.blocks[0])
    with torch.no_grad():
        for module in (block.out, block.down):
            assert module.weight is not None  # a new linear is float
            module.weight.mul_(1.0 / math.sqrt(2 * config.layers))
    implementation = "triton" if device.type == "cuda" else "reference"
    plan = plan_recipes(network, recipe)
    for name, module in linears(network).items():
        if plan[name].packs:
            module.pack(plan[name], implementation)
        else:
            _replace(network, name, PlainLinear(module))
    network.blocks = nn.ModuleList()
    network.to(device).requires_grad_(False)
    network.blocks.extend(copy.deepcopy(block).to(device) for _ in range(config.layers))
    return network.requires_grad_(False)


def _replace(network: Network, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(network.get_submodule(parent), own, module)


def step_of(network: Network, batch: int = 1) -> CapturableStep:
    """The fused step of a network whose trunk is packed, torch's operators of any other."""
    first = cast(Block, network.blocks[0]).qkv
    if isinstance(first, Linear) and first.weight is None:
        return TritonState(network, TritonModel(network), batch)
    return StaticStep(network, batch)


def read_bytes(network: Network) -> int:
    """Bytes that one step reads, by the ledger: every weight once, a robot's part of the ring."""
    found = ledger(network).step.bytes
    assert found is not None  # an estimate is never missing
    return found


def kernels(network: Network) -> dict[str, int]:
    """Operator names of the linear layers to their number."""
    found: dict[str, int] = {}
    for module in network.modules():
        if isinstance(module, Linear | PlainLinear):
            name = module.kernel if isinstance(module, Linear) else PLAIN
            found[name] = found.get(name, 0) + 1
    return found


assert LAYOUT  # its module registers triton's operators
