"""Collect episodes: an expert, noisy versions of it and random drivers, every state labelled by
the expert."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wmrt.core.errors import UsageError
from wmrt.core.files import remove_leftovers, require_writable
from wmrt.core.seeds import require_training_seeds
from wmrt.core.types import ActionSpec
from wmrt.core.workers import worker_pool
from wmrt.model.checkpoint import load_checkpoint
from wmrt.model.schema import StateSchema
from wmrt.train.dataset import (
    META,
    SHARD,
    Episode,
    Meta,
    load_shard,
    save_shard,
    shard_path,
)
from wmrt.train.drivers import DRIVERS, MODEL, Driver, ModelDriver, Policy, driver_of

HORIZON = 8


class Label(Protocol):
    action: NDArray[np.float32]
    chunks: NDArray[np.float32]
    weights: NDArray[np.float32]


class TrainingEnv(Protocol):
    """What collection needs from an environment's ``unwrapped``."""

    state_schema: StateSchema
    action_spec: ActionSpec
    period: float

    def state(self) -> dict[str, Any]: ...
    def expert_label(self, horizon: int) -> Label: ...


def make_env(env_id: str) -> Any:
    """The Gymnasium environment; registered ids of this package need no prior import."""
    import gymnasium

    try:
        env = gymnasium.make(f"wmrt.envs:{env_id}" if env_id.startswith("wmrt/") else env_id)
    except (gymnasium.error.Error, ModuleNotFoundError, ValueError) as error:
        raise UsageError(f"environment {env_id!r}: {error}") from None
    needed = ("state_schema", "action_spec", "period", "state", "expert_label")
    absent = [name for name in needed if not hasattr(env.unwrapped, name)]
    if absent:
        env.close()
        raise UsageError(f"environment {env_id!r} cannot be learned from: no {', '.join(absent)}")
    return env


def run_episode(env: Any, seed: int, kind: str, policy: Policy | None = None) -> Episode:
    """One labelled drive from ``seed`` of driver ``kind``, or of ``policy`` if given."""
    if policy is not None:
        policy.reset(seed)
    rng = np.random.default_rng([seed, 0xD21])
    env.reset(seed=seed)
    inner: TrainingEnv = env.unwrapped
    schema, driver = inner.state_schema, Driver(kind, inner.action_spec, inner.period, rng)
    rows: dict[str, list[Any]] = {k: [] for k in ("q", "action", "chunks", "weights", "reward")}
    done = terminated = False
    step = 0
    while not done:
        q = schema.quantize(inner.state())[0]
        rows["q"].append(q)
        label = inner.expert_label(HORIZON)
        wanted = label.action if policy is None else policy.act(q, driver.last)
        action = driver.act(step, wanted)
        _, reward, terminated, truncated, _ = env.step(action)
        for name, value in (
            ("action", action),
            ("chunks", label.chunks),
            ("weights", label.weights),
            ("reward", reward),
        ):
            rows[name].append(np.array(value, np.float32))
        done = terminated or truncated
        step += 1
    rows["q"].append(schema.quantize(inner.state())[0])
    a = {k: np.stack(v) for k, v in rows.items()}
    return Episode(
        a["q"],
        a["action"],
        a["chunks"],
        a["weights"],
        a["reward"],
        bool(terminated),
        seed,
        0 if policy else list(DRIVERS).index(kind),
    )


@dataclass(frozen=True)
class Shard:
    """Seeds of one file."""

    path: Path
    seeds: tuple[int, ...]


def collect_shard(env_id: str, shard: Shard, driver: ModelDriver | None = None) -> int:
    """Make one shard, driven by ``driver`` if given; returns its number of steps."""
    env, policy = make_env(env_id), None
    if driver is not None:
        from wmrt.train.onpolicy import ModelPolicy

        policy = ModelPolicy(driver.checkpoint, sensor_groups(env), driver.dwell)
    try:
        episodes = [
            run_episode(env, seed, MODEL if policy else driver_of(seed), policy)
            for seed in shard.seeds
        ]
    finally:
        env.close()
    save_shard(shard.path, episodes)
    return sum(len(e) for e in episodes)


def sensor_groups(env: Any) -> tuple[tuple[str, ...], ...]:
    """Fields of each sensor group, none if the environment names none."""
    return tuple(tuple(group) for group in getattr(env.unwrapped, "sensor_groups", ()))


def plan(folder: Path, episodes: int, first_seed: int) -> list[Shard]:
    """Shards of `SHARD` episodes each; refuses held-out seeds."""
    seeds = range(first_seed, first_seed + episodes)
    require_training_seeds(seeds)
    return [
        Shard(shard_path(folder, block[0], len(block)), tuple(block))
        for block in (seeds[i : i + SHARD] for i in range(0, episodes, SHARD))
    ]


def write_meta(
    env_id: str,
    folder: Path,
    drivers: Sequence[str] = tuple(DRIVERS),
    checkpoint: str | None = None,
) -> None:
    """Write what the shards have in common, with the hash of the ``checkpoint`` that drives.

    Raises:
        UsageError: ``folder`` cannot be written, or holds a recording of another environment,
            schema or driving checkpoint.
    """
    env = make_env(env_id)
    inner = env.unwrapped
    meta = Meta(
        env_id,
        inner.state_schema,
        inner.action_spec,
        inner.period,
        HORIZON,
        tuple(drivers),
        sensor_groups(env),
        checkpoint,
    )
    env.close()
    require_writable(folder)
    if (folder / META).exists():
        _require_same(folder, Meta.read(folder), meta)
    folder.mkdir(parents=True, exist_ok=True)
    meta.write(folder)


def _require_same(folder: Path, found: Meta, wanted: Meta) -> None:
    if found.checkpoint != wanted.checkpoint:
        drivers = [c[:16] if c else "no model" for c in (found.checkpoint, wanted.checkpoint)]
        raise UsageError(
            f"{folder} holds drives of {drivers[0]}, wanted are those of {drivers[1]}: the "
            f"checkpoint that drives was made again since; delete {folder}"
        )
    if found.to_json() != json.loads(json.dumps(wanted.to_json())):
        raise UsageError(
            f"{folder} holds a recording of another environment or schema; choose another --out"
        )


def collect(
    env_id: str,
    folder: Path,
    episodes: int,
    first_seed: int,
    jobs: int,
    progress: Callable[[int, int], None],
    driver: ModelDriver | None = None,
) -> Iterator[int]:
    """Collect missing shards with ``jobs`` processes; yields steps per finished shard.

    With ``driver`` that model drives; else the `DRIVERS`.
    """
    shards = plan(folder, episodes, first_seed)
    if driver is None:
        write_meta(env_id, folder)
    else:
        weights = load_checkpoint(driver.checkpoint).weights_sha256
        write_meta(env_id, folder, [driver.name], weights)
    missing = [s for s in shards if not _complete(s)]
    progress(len(shards) - len(missing), len(shards))
    if not missing:
        return
    try:
        with worker_pool(jobs) as pool:
            futures = [pool.submit(collect_shard, env_id, shard, driver) for shard in missing]
            for done, future in enumerate(as_completed(futures), len(shards) - len(missing) + 1):
                yield future.result()
                progress(done, len(shards))
    finally:
        for shard in missing:
            remove_leftovers(shard.path)


def _complete(shard: Shard) -> bool:
    if not shard.path.exists():
        return False
    seeds: Sequence[int] = [e.seed for e in load_shard(shard.path)]
    return tuple(seeds) == shard.seeds
