"""A source small enough to grow many times, and the sizes it grows to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.runtime.models import tiny
from wmrt.model.checkpoint import Checkpoint
from wmrt.model.config import ModelConfig
from wmrt.model.network import Network, Ring
from wmrt.runtime.build import float_network
from wmrt.train.grow import Grown, grow
from wmrt.train.grow_walk import Streams

WINDOW = 6
SMALL: dict[str, Any] = {
    "d_model": 32,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "ffn": 48,
    "window": WINDOW,
    "past": 3,
    "mlp_hidden": 16,
    "table_rows": 32,
    "action_embed": 8,
    "action_knots": 5,
    "lstm": 8,
    "select_dim": 4,
    "head_hidden": 24,
    "dyn_hidden": 24,
}
#: Growth that changes no number: only powers of two enter.
EXACT: dict[str, dict[str, Any]] = {
    "width": {"d_model": 4 * 32},
    "uneven width": {"d_model": 12 * 32},
    "nine copies": {"d_model": 128, "ffn": 9 * 48, "head_hidden": 3 * 24, "dyn_hidden": 5 * 24},
    "heads": {"d_model": 128, "heads": 16, "kv_heads": 4},
    "more groups": {"d_model": 128, "heads": 12, "kv_heads": 2},
    "four times as wide heads": {"d_model": 128, "head_dim": 32},
    "state encoder": {"d_model": 128, "mlp_hidden": 3 * 16, "table_rows": 4 * 32},
    "selector": {"d_model": 128, "lstm": 5 * 8, "select_dim": 16},
    "action knots": {"d_model": 128, "action_embed": 32, "action_knots": 17},
}
#: What the large preset does to the small one, at its ratios.
PRESET: dict[str, Any] = {
    "d_model": 8 * 32,
    "layers": 7,
    "heads": 16,
    "kv_heads": 4,
    "head_dim": 16,
    "ffn": 9 * 48,
    "mlp_hidden": 32,
    "table_rows": 128,
    "table_groups": 16,
    "action_embed": 16,
    "action_knots": 9,
    "lstm": 32,
    "select_dim": 16,
    "head_hidden": 8 * 24,
    "dyn_hidden": 4 * 24,
}


def small(seed: int) -> Checkpoint:
    return tiny(seed, **SMALL)


def larger(source: Checkpoint, **changes: Any) -> ModelConfig:
    return ModelConfig.from_json(source.model).with_(**changes)


def quiet(done: int, total: int, part: str) -> None:
    assert 0 < done <= total and part


def grown(source: Checkpoint, seed: int, **changes: Any) -> Grown:
    return grow(source, "larger", larger(source, **changes), seed, quiet)


@torch.no_grad()
def stepped(network: Network, streams: Streams, dtype: torch.dtype) -> tuple[Tensor, Ring]:
    """Hidden states [B, T, d] of `Network.step` in ``dtype``, and the ring at the end."""
    network = network.to(dtype).eval()
    empty = network.new_ring(streams.shape[0])
    tensors = {k: t if k == "step" else t.to(dtype) for k, t in empty.tensors().items()}
    ring = Ring(**tensors)
    hidden = [
        network.step(
            streams.codes[:, t],
            streams.values[:, t].to(dtype),
            streams.previous[:, t].to(dtype),
            ring,
        )
        for t in range(streams.shape[1])
    ]
    return torch.stack(hidden, 1), ring


def outputs(
    checkpoint: Checkpoint, streams: Streams, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Everything a network answers: action logits, and what it expects of the recorded action."""
    network = float_network(checkpoint)
    with torch.no_grad():
        hidden, _ = stepped(network, streams, dtype)
        found = {"action": network.action_head(hidden)}
        found.update(vars(network.predict(hidden, streams.previous.to(dtype))))
    return found
