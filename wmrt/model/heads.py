"""Heads: action chunk, next state, reward, continue."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wmrt.model.config import ModelConfig
from wmrt.model.hollow import constants
from wmrt.model.linear import Linear
from wmrt.model.schema import StateSchema
from wmrt.model.twohot import bin_centers, decode_mode, symexp, symlog, twohot

#: Range of a one-step reward; rewards outside are clamped in the target.
REWARD_RANGE = (-1.0, 1.0)


class ActionHead(nn.Module):
    """H steps x A dims, each a distribution over uniform bins on [-1, 1]."""

    centers: Tensor

    def __init__(self, config: ModelConfig, dims: int) -> None:
        super().__init__()
        self.shape = (config.chunk, dims, config.action_bins)
        self.hidden = Linear(config.d_model, config.head_hidden)
        self.activation = nn.GELU()
        self.out = Linear(config.head_hidden, config.chunk * dims * config.action_bins)
        with constants():
            centers = bin_centers(-1, 1, config.action_bins)
        self.register_buffer("centers", centers, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., d] -> logits float32[..., H, A, bins]."""
        logits: Tensor = self.out(self.activation(self.hidden(x)))
        return logits.view(*logits.shape[:-1], *self.shape)

    def decode(self, logits: Tensor) -> Tensor:
        """Chunk float32[..., H, A] in [-1, 1]."""
        return decode_mode(logits, self.centers)


def _output(width: int, size: int) -> nn.Linear:
    """A linear layer of ``size`` outputs, which may be 0: a schema without numbers or without
    categories. Torch would warn about initialising nothing."""
    layer = nn.Linear(width, max(size, 1))
    if size == 0:
        layer.out_features = 0
        layer.weight = nn.Parameter(layer.weight.detach()[:0].clone())
        layer.bias = nn.Parameter(layer.bias.detach()[:0].clone())
    return layer


@dataclass
class Prediction:
    """Logits of the consequences of one action; see `DynamicsHead`."""

    change: Tensor  # [..., Fn, bins] two-hot over symlog change of each numeric column
    missing: Tensor  # [..., Fn] logit that the column will be unknown
    category: Tensor  # [..., sum of category sizes] concatenated logits, unknown included
    reward: Tensor  # [..., reward bins]
    proceed: Tensor  # [...] logit that the episode continues


class DynamicsHead(nn.Module):
    """What the state will be one step after ``action``, with reward and continue probability.

    Changes are coded in symlog of change / delta_scale; ``delta_scale`` (median change in the
    data),
    ``delta_limit`` and ``fill`` (stand-in for an unknown current value) are fitted by training.
    """

    delta_scale: Tensor
    delta_limit: Tensor
    fill: Tensor
    reward_scale: Tensor
    bins: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, schema: StateSchema, config: ModelConfig) -> None:
        super().__init__()
        numeric = [c for c in schema.columns if c.kind == "numeric"]
        self.category_sizes = [c.size for c in schema.columns if c.kind != "numeric"]
        self.numeric, self.state_bins, self.reward_bins = (
            len(numeric),
            config.state_bins,
            config.reward_bins,
        )
        width = config.dyn_hidden
        self.body = nn.Sequential(
            nn.Linear(config.d_model + config.action_embed, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.GELU(),
        )
        self.change = _output(width, self.numeric * config.state_bins)
        self.missing = _output(width, self.numeric)
        self.category = _output(width, sum(self.category_sizes))
        self.reward = nn.Linear(width, config.reward_bins)
        self.proceed = nn.Linear(width, 1)
        self.register_buffer("delta_scale", torch.ones(self.numeric))
        self.register_buffer("delta_limit", torch.full((self.numeric,), 5.0))
        self.register_buffer("fill", torch.zeros(self.numeric))
        self.register_buffer("reward_scale", torch.ones(()))
        with constants():
            bins = bin_centers(-1, 1, config.state_bins)
            low, high = (torch.tensor([getattr(c, k) for c in numeric]) for k in ("low", "high"))
        self.register_buffer("bins", bins, persistent=False)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)

    def forward(self, x: Tensor, action: Tensor) -> Prediction:
        """x [..., d], embedded action [..., E]."""
        y = self.body(torch.cat([x, action], dim=-1))
        return Prediction(
            self.change(y).unflatten(-1, (self.numeric, self.state_bins)),
            self.missing(y),
            self.category(y),
            self.reward(y),
            self.proceed(y).squeeze(-1),
        )

    def _base(self, values: Tensor, known: Tensor) -> Tensor:
        return torch.where(known, values, self.fill)

    def change_target(self, values: Tensor, known: Tensor, following: Tensor) -> Tensor:
        """Two-hot target [..., Fn, bins] for going from ``values`` (where ``known``) to
        ``following``."""
        change = (following - self._base(values, known)) / self.delta_scale
        return twohot(symlog(change) / self.delta_limit, -1, 1, self.state_bins)

    def reward_target(self, reward: Tensor) -> Tensor:
        return twohot(reward / self.reward_scale, *REWARD_RANGE, self.reward_bins)

    def decode_state(
        self, prediction: Prediction, values: Tensor, known: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Next numeric values float32[..., Fn] clamped to the schema's range, and which are
        known."""
        symlogged = decode_mode(prediction.change, self.bins) * self.delta_limit
        following = self._base(values, known) + symexp(symlogged) * self.delta_scale
        return following.clamp(self.low, self.high), prediction.missing <= 0

    def decode_category(self, prediction: Prediction) -> Tensor:
        """Category codes int64[..., Fc]."""
        if not self.category_sizes:
            return prediction.category.long()
        parts = torch.split(prediction.category, self.category_sizes, dim=-1)
        return torch.stack([p.argmax(dim=-1) for p in parts], dim=-1)

    def decode_reward(self, prediction: Prediction) -> Tensor:
        """Expected reward float32[...]."""
        centers = bin_centers(*REWARD_RANGE, self.reward_bins, prediction.reward.device)
        return (prediction.reward.softmax(dim=-1) * centers).sum(dim=-1) * self.reward_scale
