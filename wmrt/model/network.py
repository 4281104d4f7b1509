"""The world model network: whole sequences for training, one step over a ring for control.

Both paths are the same function: `Network.step` repeated equals `Network.forward` at every
position,
also past the ring's wrap-around (tests/model/test_network.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from wmrt.core.errors import UsageError
from wmrt.core.types import ActionSpec
from wmrt.model.action_quant import ActionQuant
from wmrt.model.config import ModelConfig
from wmrt.model.fusion import ActionEmbedding, StateFusion
from wmrt.model.heads import ActionHead, DynamicsHead, Prediction
from wmrt.model.hollow import constants, hollow
from wmrt.model.rope import rope_table, turn_increments
from wmrt.model.schema import StateSchema
from wmrt.model.transition import TransitionSelector
from wmrt.model.trunk import Block, RMSNorm


@dataclass
class Ring:
    """Past states of B independent robots. Everything is allocated once and written in place.

    keys, values float32[L, B, W, KV, hd]; select_keys float32[B, W, s]; hidden, cell float32[B, h];
    step int64[B] is the number of steps taken (the absolute step of the next state).
    """

    keys: Tensor
    values: Tensor
    select_keys: Tensor
    hidden: Tensor
    cell: Tensor
    step: Tensor

    def tensors(self) -> dict[str, Tensor]:
        return dict(vars(self))

    def clone(self) -> Ring:
        return Ring(**{name: t.clone() for name, t in self.tensors().items()})

    def repeat(self, count: int) -> Ring:
        """Each robot ``count`` times, for rollouts of several action sequences."""
        batch_axis = {"keys": 1, "values": 1}
        return Ring(
            **{
                name: t.repeat_interleave(count, dim=batch_axis.get(name, 0))
                for name, t in self.tensors().items()
            }
        )

    def reset(self) -> None:
        for tensor in self.tensors().values():
            tensor.zero_()

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.tensors().values())


@dataclass
class Sequence:
    """What `Network.forward` gives besides the hidden states; used by the losses."""

    embedding: Tensor
    scores: Tensor
    age: Tensor
    attention: list[tuple[Tensor, Tensor]]


class Network(nn.Module):
    """State codes in, action chunk and predicted next state out."""

    increments: Tensor
    numeric_index: Tensor

    def __init__(self, schema: StateSchema, config: ModelConfig, actions: ActionSpec) -> None:
        super().__init__()
        if not schema.columns:
            raise UsageError("the schema has no fields; a world model needs at least one")
        if len(schema.neutral) != len(actions):
            raise UsageError(
                f"the schema's neutral action has {len(schema.neutral)} numbers, "
                f"the actions are {', '.join(actions.names)}"
            )
        self.schema, self.config, self.actions = schema, config, actions
        self.action_embedding = ActionEmbedding(
            len(actions), config.action_knots, config.action_embed
        )
        self.fusion = StateFusion(schema, config)
        self.selector = TransitionSelector(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.d_model)
        self.action_head = ActionHead(config, len(actions))
        self.dynamics = DynamicsHead(schema, config)
        self.action_quant = ActionQuant(config.chunk, len(actions))
        numeric = [i for i, c in enumerate(schema.columns) if c.kind == "numeric"]
        with constants():
            increments = turn_increments(config.head_dim // 2, config.rope_base)
            index = torch.tensor(numeric, dtype=torch.int64)
        self.register_buffer("increments", increments, persistent=False)
        self.register_buffer("numeric_index", index, persistent=False)

    @classmethod
    def hollow(cls, schema: StateSchema, config: ModelConfig, actions: ActionSpec) -> Network:
        """A network whose stored tensors have no values, on the meta device; for
        ``load_state_dict(..., assign=True)``."""
        with hollow():
            return cls(schema, config, actions)

    def forward(
        self,
        codes: Tensor,
        values: Tensor,
        previous: Tensor,
        generator: torch.Generator | None = None,
        keep_attention: bool = False,
    ) -> tuple[Tensor, Sequence]:
        """codes int[B, T, F], values float32[B, T, F], previous actions [B, T, A] -> hidden [B, T,
        d]."""
        action = self.action_embedding(previous)
        x, embedding = self.fusion(codes, values, action)
        scores, age = self.selector.scores(x, action)
        bias = self.selector.sequence_bias(scores, age, generator)
        cos, sin = rope_table(torch.arange(x.shape[1], device=x.device), self.increments)
        attention = []
        for block in self.blocks:
            x, q, k = block(x, bias, cos, sin)
            if keep_attention:
                attention.append((q, k))
        return self.norm(x), Sequence(embedding, scores, age, attention)

    def new_ring(self, batch: int = 1) -> Ring:
        """An empty ring for ``batch`` robots on the network's device."""
        c, device = self.config, self.increments.device
        shape = (c.layers, batch, c.window, c.kv_heads, c.head_dim)
        return Ring(
            torch.zeros(shape, device=device),
            torch.zeros(shape, device=device),
            torch.zeros(batch, c.window, c.select_dim, device=device),
            torch.zeros(batch, c.lstm, device=device),
            torch.zeros(batch, c.lstm, device=device),
            torch.zeros(batch, dtype=torch.int64, device=device),
        )

    def step(
        self,
        codes: Tensor,
        values: Tensor,
        previous: Tensor,
        ring: Ring,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """codes int[B, F], values float32[B, F], previous action [B, A] -> hidden [B, d]; advances
        ``ring``."""
        action = self.action_embedding(previous)
        x, _ = self.fusion(codes, values, action)
        window = self.config.window
        slot = ring.step % window
        hidden, cell = self.selector.lstm(action, (ring.hidden, ring.cell))
        ring.hidden.copy_(hidden)
        ring.cell.copy_(cell)
        row = torch.arange(x.shape[0], device=x.device)
        ring.select_keys[row, slot] = self.selector.key(x)
        position = torch.arange(window, device=x.device)
        age = (slot.unsqueeze(1) - position) % window
        age = torch.where(age <= ring.step.unsqueeze(1), age, -1)
        chosen = self.selector.select(hidden, ring.select_keys, age, generator)
        cos, sin = rope_table(ring.step, self.increments)
        for block, keys, slot_values in zip(self.blocks, ring.keys, ring.values, strict=True):
            x = cast(Block, block).step(x, keys, slot_values, slot, chosen, cos, sin)
        ring.step.add_(1)
        result: Tensor = self.norm(x)
        return result

    def predict(self, hidden: Tensor, action: Tensor) -> Prediction:
        """Consequences of ``action`` float32[..., A] taken in the state behind ``hidden``."""
        result: Prediction = self.dynamics(hidden, self.action_embedding(action))
        return result

    def split(self, codes: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Numeric values float32[..., Fn] and which of them are known, from a state's codes and
        values."""
        return values[..., self.numeric_index], codes[..., self.numeric_index] > 0
