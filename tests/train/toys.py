"""A mass on a line: a world small enough to learn in seconds, as episodes and as an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.config import ModelConfig, preset
from wmrt.model.network import Network
from wmrt.model.schema import StateSchema, category, flag, numeric
from wmrt.train.dataset import Episode, Meta, Recording, save_shard, shard_path
from wmrt.train.losses import LossWeights
from wmrt.train.occlusion import group_mask
from wmrt.train.statistics import fit_changes, fit_knots
from wmrt.train.trainer import TrainConfig, Trainer

HORIZON = 4
ACTIONS = ActionSpec((ActionDim("push", "N", -2.0, 2.0, 20.0, 40.0),))
SCHEMA = StateSchema(
    {
        "x": numeric("m", -10, 10, decimals=2, buckets=16, required=True),
        "v": numeric("m/s", -4, 4, decimals=2, buckets=16),
        "side": category(["left", "right"]),
        "moving": flag(),
    },
    neutral=[0.0],
)
GROUPS = (("v", "moving"), ("side",))
CONFIG: ModelConfig = preset("tiny").with_(chunk=HORIZON, dropout=0.0)
QUICK = TrainConfig(steps=30, batch=8, window=16, lr=3e-3, warmup=5, validation=0.1, save_every=10)


def state_of(x: float, v: float) -> dict[str, Any]:
    return {"x": x, "v": v, "side": "right" if x > 0 else "left", "moving": abs(v) > 0.5}


def expert(x: float, v: float) -> float:
    return float(np.clip(-0.4 * x - 0.8 * v, -1, 1))


def move(x: float, v: float, push: float) -> tuple[float, float]:
    v = 0.9 * v + 0.5 * push
    return x + 0.2 * v, v


def episode(seed: int, steps: int, terminated: bool = False) -> Episode:
    """``steps`` steps from a random start under the noisy expert."""
    rng = np.random.default_rng(seed)
    x, v = rng.uniform(-6, 6), rng.uniform(-1, 1)
    q, action, chunks, reward = [], [], [], []
    for _ in range(steps):
        q.append(SCHEMA.quantize(state_of(x, v))[0])
        best = expert(x, v)
        push = float(np.clip(best + rng.normal(0, 0.3), -1, 1))
        x, v = move(x, v, push)
        action.append([push])
        both = np.array([best, np.clip(best + 0.1, -1, 1)], np.float32)
        chunks.append(np.repeat(both[:, None, None], HORIZON, 1))
        reward.append(0.1 * (1 - abs(x) / 10))
    q.append(SCHEMA.quantize(state_of(x, v))[0])
    return Episode(
        np.stack(q),
        np.array(action, np.float32),
        np.array(chunks, np.float32),
        np.tile(np.array([0.75, 0.25], np.float32), (steps, 1)),
        np.array(reward, np.float32),
        terminated,
        seed,
        0,
    )


def episodes(count: int, steps: int = 40, first: int = 0) -> list[Episode]:
    """Every fifth of them ends in a crash."""
    return [episode(first + i, steps, terminated=i % 5 == 4) for i in range(count)]


def folder(path: Path, made: list[Episode], per_shard: int = 20) -> Path:
    """A recording on disk."""
    path.mkdir(parents=True, exist_ok=True)
    Meta("toy/Toy-v0", SCHEMA, ACTIONS, 0.1, HORIZON, ("expert",), GROUPS).write(path)
    for start in range(0, len(made), per_shard):
        block = made[start : start + per_shard]
        save_shard(shard_path(path, block[0].seed, len(block)), block)
    return path


def network_for(made: list[Episode], seed: int, config: ModelConfig = CONFIG) -> Network:
    schema = fit_knots(SCHEMA, made)
    torch.manual_seed(seed)
    network = Network(schema, config, ACTIONS)
    fit_changes(network, Recording.build(made, schema))
    return network


def trainer_for(
    made: list[Episode],
    seed: int,
    config: TrainConfig = QUICK,
    model: ModelConfig = CONFIG,
    groups: tuple[tuple[str, ...], ...] = GROUPS,
) -> Trainer:
    network = network_for(made, seed, model)
    recording = Recording.build(made, network.schema)
    return Trainer(network, recording, config, group_mask(network.schema, groups))


#: Only what a test weighs; the default weights belong to driving.
PLAIN = LossWeights(state=1.0, action=1.0)


@dataclass
class Label:
    action: NDArray[np.float32]
    chunks: NDArray[np.float32]
    weights: NDArray[np.float32]


class ToyEnv:
    """The mass on a line with the interface of an environment; 12 steps, or off the line."""

    state_schema = SCHEMA
    action_spec = ACTIONS
    period = 0.1
    sensor_groups = GROUPS

    def __init__(self, steps: int = 12) -> None:
        self.steps, self.closed = steps, False

    @property
    def unwrapped(self) -> ToyEnv:
        return self

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        rng = np.random.default_rng(seed)
        self.x, self.v, self.t = rng.uniform(-6, 6), rng.uniform(-1, 1), 0
        return {}, {"state": self.state()}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.x, self.v = move(self.x, self.v, float(action[0]))
        self.t += 1
        return {}, 0.1 * (1 - abs(self.x) / 10), abs(self.x) > 8, self.t >= self.steps, {}

    def state(self) -> dict[str, Any]:
        return state_of(self.x, self.v)

    def expert_label(self, horizon: int) -> Label:
        best = np.float32(expert(self.x, self.v))
        chunks = np.full((2, horizon, 1), best, np.float32)
        return Label(np.array([best]), chunks, np.array([0.5, 0.5], np.float32))

    def close(self) -> None:
        self.closed = True


class _Here:
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


@contextmanager
def here(jobs: int, prepare: Callable[..., object] | None = None, *arguments: Any) -> Iterator[Any]:
    """In place of `worker_pool`: what is submitted runs at once, in this process."""
    yield _Here()
