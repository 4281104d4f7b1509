"""A network stepped over what several robots see, one layer at a time.

A network of 1.3B parameters in float32 is 5.2 GB, and a step of it reads all of them. Here a layer
takes all steps of all robots before the next one is widened: 216 MB at a time. Its matrices see
all rows at once, its attention goes through the ring step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wmrt.model.checkpoint import Checkpoint
from wmrt.model.config import ModelConfig
from wmrt.model.network import Network
from wmrt.model.schema import UNKNOWN, StateSchema
from wmrt.model.stages import empty_block
from wmrt.model.transition import Selection
from wmrt.model.trunk import Block
from wmrt.quant import get_recipe
from wmrt.runtime.build import pack_network

#: Called with (done, total, name of the part just done).
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Streams:
    """What B robots see in T steps. codes int64[B, T, F], values float32[B, T, F], previous actions
    float32[B, T, A]."""

    codes: Tensor
    values: Tensor
    previous: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def first(self, steps: int) -> Streams:
        """The first ``steps`` of every robot."""
        return Streams(*(tensor[:, :steps] for tensor in vars(self).values()))

    def joined(self, other: Streams) -> Streams:
        """More robots."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Streams(*(torch.cat([a, b]) for a, b in pairs))


def random_streams(
    schema: StateSchema, actions: int, robots: int, steps: int, seed: int
) -> Streams:
    """States of ``robots`` robots, one in ten readings unknown: half of them anywhere at every
    step, the others wandering by up to 2% of each range. Actions are uniform."""
    rng = np.random.default_rng(seed)
    low = np.array([c.q_low for c in schema.columns], np.int64)
    high = np.array([c.q_high for c in schema.columns], np.int64)
    q = rng.integers(low, high + 1, (robots, steps, len(low)))
    reach = np.maximum(1, (high - low) // 50)
    moves = rng.integers(-reach, reach + 1, q.shape)
    moves[:, 0] = q[:, 0]
    wandering = np.clip(np.cumsum(moves, axis=1), low, high)
    q[robots // 2 :] = wandering[robots // 2 :]
    required = np.array([c.required for c in schema.columns])
    q[(rng.random(q.shape) < 0.1) & ~required] = UNKNOWN
    codes, values = schema.encode_q(q)
    previous = rng.uniform(-1, 1, (robots, steps, actions)).astype(np.float32)
    return Streams(
        torch.from_numpy(codes).long(), torch.from_numpy(values), torch.from_numpy(previous)
    )


@dataclass(frozen=True)
class Write:
    """What a layer added to the residual stream: RMS relative to the stream before it, of the
    attention and of the MLP, and the share of the stream's numbers that the layer changed."""

    attention: float
    mlp: float
    changed: float


@dataclass(frozen=True)
class Walk:
    """A network over `Streams`: hidden float32[B, T, d], chosen slots int64[B, T, k], writes by
    layer."""

    network: Network
    hidden: Tensor
    slots: Tensor
    writes: list[Write]


@dataclass(frozen=True)
class _Given:
    """What a step gives to every layer, and ``x`` [B, d] to the first."""

    x: Tensor
    slot: Tensor
    chosen: Selection
    cos: Tensor
    sin: Tensor


class _Handed(nn.Module):
    """Stands for the layers and keeps what each step hands to them; adds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[_Given] = []

    def step(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        slot: Tensor,
        chosen: Selection,
        cos: Tensor,
        sin: Tensor,
    ) -> Tensor:
        self.taken.append(_Given(x, slot, chosen, cos, sin))
        return x


@torch.inference_mode()
def walk(
    checkpoint: Checkpoint,
    streams: Streams,
    progress: Progress | None = None,
    recipe: str | None = None,
) -> Walk:
    """The network of ``checkpoint`` stepped over ``streams`` from an empty ring: `Network.step`,
    layer after layer.

    Args:
        recipe: what its linears run; None for float32.

    Memory: everything outside the layers and one layer in float32, and the stream of all steps.
    """
    config = ModelConfig.from_json(checkpoint.model)
    network = _without_layers(checkpoint, config, recipe)
    handed, ring = _Handed(), network.new_ring(streams.shape[0])
    network.blocks = nn.ModuleList([handed])
    for t in range(streams.shape[1]):
        network.step(streams.codes[:, t], streams.values[:, t], streams.previous[:, t], ring)
    steps, writes = handed.taken, []
    x, cos, sin = (torch.stack([getattr(s, name) for s in steps]) for name in ("x", "cos", "sin"))
    for layer in range(config.layers):
        block = _layer(checkpoint, config, layer, recipe)
        keys, values = ring.keys[0].zero_(), ring.values[0].zero_()
        written = _Written(block)
        looking = zip(*block.project(x, cos, sin), steps, strict=True)
        attended = [block.look(q, k, v, keys, values, s.slot, s.chosen) for q, k, v, s in looking]
        after = block.finish(x, torch.stack(attended))
        writes.append(written.result(x, after))
        x = after
        if progress is not None:
            progress(layer + 1, config.layers, f"layer {layer}")
    slots = torch.stack([s.chosen.slots for s in steps], 1)
    return Walk(network, network.norm(x).transpose(0, 1), slots, writes)


def _without_layers(checkpoint: Checkpoint, config: ModelConfig, recipe: str | None) -> Network:
    with torch.random.fork_rng(devices=[]):
        network = Network(checkpoint.schema, config.with_(layers=1), checkpoint.actions).eval()
    network.blocks = nn.ModuleList()
    stored = {k: t.float() for k, t in checkpoint.tensors.items() if not k.startswith("blocks.")}
    network.load_state_dict(stored, strict=True, assign=True)
    return network if recipe is None else pack_network(network, get_recipe(recipe))


def _layer(checkpoint: Checkpoint, config: ModelConfig, layer: int, recipe: str | None) -> Block:
    block, prefix = empty_block(config), f"blocks.{layer}."
    stored = {
        name.removeprefix(prefix): tensor.float()
        for name, tensor in checkpoint.tensors.items()
        if name.startswith(prefix)
    }
    block.load_state_dict(stored, strict=True, assign=True)
    for module in (block.qkv, block.out, block.gate_up, block.down):
        if recipe is not None:
            module.pack(recipe)
    return block


class _Written:
    """Listens to what a layer's two branches add."""

    def __init__(self, block: Block) -> None:
        self._rms: dict[str, float] = {}
        for name in ("out", "down"):
            block.get_submodule(name).register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self._rms[name] = float(output.square().mean().sqrt())

        return keep

    def result(self, before: Tensor, after: Tensor) -> Write:
        stream = float(before.square().mean().sqrt())
        changed = float((after != before).float().mean())
        return Write(self._rms["out"] / stream, self._rms["down"] / stream, changed)
