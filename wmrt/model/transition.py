"""Transition attention: which past states this step looks back at.

A small LSTM reads the stream of previous actions (the action intent) and scores the past slots once
per step; every layer then reads the current slot and the k best past slots only. The softmax over
those k + 1 gathered slots is the jump softmax. The log of each chosen slot's gate is added to its
logits, so that gradients reach the scores through a hard top-k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wmrt.model.config import ModelConfig

NEG_INF = float("-inf")


@dataclass
class Selection:
    """Slots one step reads. ``slots`` int64[B, k], ``bias`` float32[B, k] (-inf: not written
    yet)."""

    slots: Tensor
    bias: Tensor


class TransitionSelector(nn.Module):
    """Scores past slots from action intent and slot keys; one choice for all layers and heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.kind, self.past, self.window = config.selector, config.past, config.window
        self.lstm = nn.LSTMCell(config.action_embed, config.lstm)
        self.query = nn.Linear(config.lstm, config.select_dim)
        self.key = nn.Linear(config.d_model, config.select_dim)
        self.age_bias = nn.Parameter(torch.zeros(config.window))
        self.scale = 1.0 / math.sqrt(config.select_dim)

    # -- whole sequences (training, evaluation) ---------------------------------------------------

    def scores(self, token: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """token [B, T, d], embedded action [B, T, E] -> scores [B, T, T] and ages int64[T, T]."""
        steps = token.shape[1]
        hidden = action.new_zeros(action.shape[0], self.lstm.hidden_size)
        cell, intent = hidden, []
        for t in range(steps):
            hidden, cell = self.lstm(action[:, t], (hidden, cell))
            intent.append(hidden)
        query, key = self.query(torch.stack(intent, 1)), self.key(token)
        index = torch.arange(steps, device=token.device)
        age = index[:, None] - index[None, :]
        bias = self.age_bias[age.clamp(0, self.window - 1)]
        return query @ key.transpose(1, 2) * self.scale + bias, age

    def sequence_bias(
        self, scores: Tensor, age: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Additive attention bias float32[B, T, T]: 0 at the current slot, gate or 0 at chosen
        past slots, else -inf."""
        past = (age > 0) & (age < self.window)
        blocked = torch.full_like(scores, NEG_INF)
        if self.kind == "full":
            return blocked.masked_fill(past | (age == 0), 0.0)
        ranking = self._rank(scores, age, generator).masked_fill(~past, NEG_INF)
        top = ranking.topk(min(self.past, scores.shape[-1]), dim=-1).indices
        chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, top, True) & past
        gate = F.logsigmoid(scores) if self.kind == "learned" else torch.zeros_like(scores)
        return torch.where(chosen, gate, blocked.masked_fill(age == 0, 0.0))

    def _rank(self, scores: Tensor, age: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.kind == "recent":
            return (-age.float()).expand_as(scores)
        if self.kind == "random":
            return torch.rand(scores.shape, generator=generator, device=scores.device)
        return scores.detach()

    # -- one step over the ring --------------------------------------------------------------------

    def select(
        self, hidden: Tensor, keys: Tensor, age: Tensor, generator: torch.Generator | None
    ) -> Selection:
        """LSTM output [B, h], slot keys [B, W, s], slot ages int64[B, W] (0 current, -1 unwritten).

        Returns k slots per row; with ``full`` every past slot. Unwritten slots carry bias -inf.
        """
        query = self.query(hidden)
        scores = torch.einsum("bs,bws->bw", query, keys) * self.scale
        scores = scores + self.age_bias[age.clamp(0, self.window - 1)]
        past = age > 0
        count = self.window - 1 if self.kind == "full" else self.past
        ranking = -age.float() if self.kind == "full" else self._rank(scores, age, generator)
        slots = ranking.masked_fill(~past, NEG_INF).topk(count, dim=-1).indices
        gate = F.logsigmoid(scores) if self.kind == "learned" else torch.zeros_like(scores)
        bias = torch.where(past, gate, torch.full_like(gate, NEG_INF))
        return Selection(slots, bias.gather(1, slots))


def jump_softmax(logits: Tensor, bias: Tensor) -> Tensor:
    """Softmax over the gathered slots only; a bias of -inf gives a weight of exactly 0.

    logits [..., n] with the current slot always present, so the sum never is 0.
    """
    return (logits + bias).softmax(dim=-1)
