"""Small networks, schemas of every shape, and random state streams for the model tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.config import preset
from wmrt.model.network import Network
from wmrt.model.schema import StateSchema, category, flag, instruction, numeric, vector

ACTIONS = ActionSpec(
    (
        ActionDim("steering", "rad", -0.06, 0.06, 0.3, 0.3),
        ActionDim("acceleration", "m/s2", -5, 5, 15, 30),
    )
)


def small_schema() -> StateSchema:
    return StateSchema(
        {
            "speed": numeric("m/s", 0, 40, decimals=2, buckets=16, required=True),
            "gap": numeric("m", 0, 100, decimals=1, buckets=16),
            "lane": category(["left", "middle", "right"]),
            "braking": flag(),
        },
        neutral=[0.0, 0.0],
    )


def schemas() -> dict[str, StateSchema]:
    """One schema per shape a network has to cope with."""
    number = numeric("m", -5, 20, decimals=2, buckets=8)
    shapes = {
        "no categories": {"a": number, "b": numeric("m/s", 0, 1, decimals=3, buckets=31)},
        "no numerics": {"lane": category(["left", "right"]), "on": flag()},
        "one flag": {"on": flag()},
        "a vector": {"pose": vector(3, "m", -1, 1, decimals=3, buckets=16), "a": number},
        "flags": {"on": flag(), "a": number, "off": flag(required=True)},
        "an instruction": {"a": number, "say": instruction(), "lane": category(["l", "r"])},
    }
    return {name: StateSchema(fields, neutral=[0.0, 0.0]) for name, fields in shapes.items()}


def build(seed: int, schema: StateSchema | None = None, **changes: object) -> Network:
    """A tiny network with enough spread in its weights to tell inputs apart; no dropout."""
    torch.manual_seed(seed)
    config = preset("tiny").with_(dropout=0.0, **changes)
    network = Network(schema or small_schema(), config, ACTIONS).eval()
    with torch.no_grad():  # a fresh head is too flat to see a difference in
        for p in network.parameters():
            p.mul_(1.5)
    return network


def random_state(rng: np.random.Generator, schema: StateSchema) -> dict[str, Any]:
    """Plain values for every field; a fifth of the optional ones unknown."""
    state: dict[str, Any] = {}
    for name, field in schema.fields.items():
        if field.numeric:
            span = field.high - field.low
            drawn = rng.uniform(field.low - 0.1 * span, field.high + 0.1 * span, field.n)
            state[name] = drawn.tolist() if field.kind == "vector" else float(drawn[0])
        elif field.kind == "category":
            state[name] = str(rng.choice([*field.values, "?"]))
        elif field.kind == "flag":
            state[name] = bool(rng.random() < 0.5)
        else:
            state[name] = str(rng.choice(["stop", "keep left"]))
        if not field.required and rng.random() < 0.2:
            state[name] = None
    return state


def stream(network: Network, batch: int, steps: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """codes int64[B, T, F], values float32[B, T, F], previous actions float32[B, T, A]."""
    rng = np.random.default_rng(seed)
    schema = network.schema
    states = [[random_state(rng, schema) for _ in range(steps)] for _ in range(batch)]
    q = np.stack([np.stack([schema.quantize(s)[0] for s in row]) for row in states])
    codes, values = schema.encode_q(q)
    previous = rng.uniform(-1, 1, (batch, steps, len(network.actions))).astype(np.float32)
    return torch.from_numpy(codes).long(), torch.from_numpy(values), torch.from_numpy(previous)
