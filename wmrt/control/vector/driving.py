"""A vectorised environment under controllers, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from wmrt.control import settings
from wmrt.control.protocol import Outcome
from wmrt.control.vector.controller import VectorController
from wmrt.core.clock import SystemClock
from wmrt.core.errors import UsageError


@dataclass(frozen=True)
class VectorStep:
    """One step of all sub-environments.

    Attributes:
        episode: int64[N], the episode each action belongs to, from 1.
        actions: float32[N, A].
        outcomes: of each controller; None where the environment ignored the action.
        rewards, terminated, truncated, infos: what the environment answered.
    """

    episode: NDArray[np.int64]
    actions: NDArray[np.float32]
    outcomes: list[Outcome | None]
    rewards: Any
    terminated: Any
    truncated: Any
    infos: dict[str, Any]


def drive_vector(
    envs: VectorEnv[Any, Any, Any], drivers: VectorController, steps: int, *, seed: Any = None
) -> Iterator[VectorStep]:
    """Drive ``steps`` steps from a reset; in mode DISABLED also reset where an episode is over.

    Args:
        envs: takes float32[N, A] in [-1, 1].
        drivers: made for its number of sub-environments and its autoreset mode.
        seed: for the first reset.

    Raises:
        UsageError: drivers for another environment, or that go by the machine's clock.
    """
    _check(envs, drivers)
    settings.count("steps", steps, 1)
    drivers.reset(*envs.reset(seed=seed))
    for _ in range(steps):
        episode = drivers.episodes.number.copy()
        actions = drivers.act()
        outcomes = list(drivers.last)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        drivers.observe(obs, rewards, terminated, truncated, infos)
        yield VectorStep(episode, actions, outcomes, rewards, terminated, truncated, infos)
        ended = np.logical_or(terminated, truncated)
        if drivers.episodes.mode is AutoresetMode.DISABLED and ended.any():
            drivers.reset(*envs.reset(options={"reset_mask": ended}), mask=ended)


def _check(envs: VectorEnv[Any, Any, Any], drivers: VectorController) -> None:
    episodes, mode = drivers.episodes, envs.metadata.get("autoreset_mode")
    if envs.num_envs != episodes.count or mode is not episodes.mode:
        raise UsageError(
            f"drive_vector: {episodes.count} controllers for mode {episodes.mode.name} and an "
            f"environment of {envs.num_envs} in mode {getattr(mode, 'name', mode)}; make them for "
            'envs.num_envs and envs.metadata["autoreset_mode"]'
        )
    if any(isinstance(each.clock, SystemClock) for each in drivers.controllers):
        raise UsageError(
            "drive_vector: a controller goes by the machine's clock, the simulator does not; make "
            "it with clock=StepClock(period)"
        )
