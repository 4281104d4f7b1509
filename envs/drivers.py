"""Whole episodes by the drivers that need no model: the control arms of every result table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import gymnasium
import numpy as np

from wmrt.core.errors import UsageError

Driver = Callable[[Any, dict[str, Any]], np.ndarray]  # (unwrapped env, state) -> action


def _random(seed: int) -> Driver:
    generator = np.random.Generator(np.random.PCG64(seed))
    return lambda env, state: generator.uniform(-1.0, 1.0, 2).astype(np.float32)


def _rule(seed: int) -> Driver:
    return lambda env, state: np.asarray(env.rule_action(state, env.executed))


def _expert(seed: int) -> Driver:
    return lambda env, state: np.asarray(env.expert_label(1).action)


DRIVERS: dict[str, Callable[[int], Driver]] = {
    "random": _random,
    "rule": _rule,
    "expert": _expert,
}


def drive_episode(env: gymnasium.Env[Any, Any], kind: str, seed: int) -> dict[str, Any]:
    """One episode of a driver, as a row.

    Returns:
        seed, return, crashed, offroad, mean_speed (m/s), distance (m), steps, lane_changes, and
        over_rate: the share of steps whose action is further from the previous one than the
        actuators' rate limits allow.
    """
    unwrapped: Any = env.unwrapped
    driver = DRIVERS[kind](seed)
    _, info = env.reset(seed=seed)
    deltas = np.array([dim.max_delta(unwrapped.period) for dim in unwrapped.action_spec.dims])
    start, total, speeds, lane_changes, over = info["x"], 0.0, [], 0, 0
    done = False
    while not done:
        lane, previous = info["state"]["lane"], unwrapped.executed
        _, reward, terminated, truncated, info = env.step(driver(unwrapped, info["state"]))
        change = unwrapped.executed - previous
        over += bool(((change > deltas[:, 0] + 1e-5) | (-change > deltas[:, 1] + 1e-5)).any())
        total += float(reward)
        speeds.append(info["speed"])
        lane_changes += info["state"]["lane"] != lane
        done = terminated or truncated
    return {
        "seed": seed,
        "return": total,
        "crashed": info["crashed"],
        "offroad": info["offroad"],
        "mean_speed": float(np.mean(speeds)),
        "distance": info["x"] - start,
        "steps": len(speeds),
        "lane_changes": lane_changes,
        "over_rate": over / len(speeds),
    }


def _drive_many(kind: str, seeds: list[int], env_id: str) -> list[dict[str, Any]]:
    env = gymnasium.make(f"wmrt.envs:{env_id}")
    rows = [drive_episode(env, kind, seed) for seed in seeds]
    env.close()
    return rows


def evaluate_driver(
    kind: str, seeds: Iterable[int], env_id: str = "wmrt/Highway-v0", *, processes: int = 2
) -> list[dict[str, Any]]:
    """Drive every seed with ``kind`` (random, rule or expert); rows in the order of ``seeds``.

    ``processes`` only divides the work: a row depends on its seed alone. With 1 it runs right here.

    Raises:
        UsageError: no such driver.
    """
    if kind not in DRIVERS:
        raise UsageError(f"driver {kind!r} does not exist; choose from {', '.join(DRIVERS)}")
    seeds = list(seeds)
    if processes <= 1 or len(seeds) < 2:
        return _drive_many(kind, seeds, env_id)
    shares = [seeds[i::processes] for i in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_drive_many, kind, share, env_id) for share in shares if share]
        rows = {row["seed"]: row for job in jobs for row in job.result()}
    return [rows[seed] for seed in seeds]
