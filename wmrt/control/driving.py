"""One episode under a controller, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.control.controller import Controller
from wmrt.control.protocol import Outcome
from wmrt.core.clock import SystemClock
from wmrt.core.errors import UsageError


@dataclass(frozen=True)
class DrivenStep:
    """One step of an episode.

    Attributes:
        state: what the controller saw.
        action: float32[A], what it sent.
        outcome: breakers, timing, source; see `Outcome`.
        reward, terminated, truncated, info: what the environment answered.
    """

    state: Any
    action: NDArray[np.float32]
    outcome: Outcome | None
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def drive(
    env: Any,
    controller: Controller,
    seed: int,
    *,
    state: Callable[[Any, dict[str, Any]], Any] | None = None,
    max_steps: int | None = None,
) -> Iterator[DrivenStep]:
    """Drive one episode from ``reset(seed)`` to its end.

    Args:
        env: a Gymnasium environment that takes float32[A] in [-1, 1].
        controller: resets with the environment. Its clock must not be the machine's: simulated
            steps are not real time, the rate limits would take them for a flooding sender.
        state: (observation, info) -> the state; default ``info["state"]``, else the observation.
        max_steps: stop after so many steps.

    Raises:
        UsageError: the controller runs by the machine's clock.
    """
    if isinstance(controller.clock, SystemClock):
        raise UsageError(
            "drive: the controller goes by the machine's clock, the simulator does not; "
            "make it with clock=StepClock(period)"
        )
    obs, info = env.reset(seed=seed)
    controller.reset()
    steps = 0
    while max_steps is None or steps < max_steps:
        seen = info.get("state", obs) if state is None else state(obs, info)
        action = controller.act(seen)
        obs, reward, terminated, truncated, info = env.step(action)
        steps += 1
        yield DrivenStep(
            seen, action, controller.last, float(reward), bool(terminated), bool(truncated), info
        )
        if terminated or truncated:
            return
