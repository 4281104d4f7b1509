"""A vectorised environment whose observations say where they come from, and a policy that checks.

Each state is a canary: sub-environment, episode, step, and what only this one holds. The policy's
action is a count of the steps since its last reset; the environment compares it with its own count,
so that anything carried across an episode or between robots shows on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from tests.control.support import simulated
from tests.safety.support import DRIVING, PERIOD
from wmrt.control import Controller
from wmrt.control.vector import StateInfo
from wmrt.model.schema import StateSchema, category, flag, numeric

MODES = list(AutoresetMode)
LENGTHS = (3, 1, 4, 7)  # of the episodes; sub-environment i begins at place i
COUNT = 0.01  # of the action, per step

SCHEMA = StateSchema(
    {
        "env": numeric("1", 0, 100, required=True),
        "episode": numeric("1", 0, 1000, required=True),
        "step": numeric("1", 0, 1000, required=True),
        "speed": numeric("m/s", 0.0, 40.0, decimals=3, required=True),
        "wet": flag(),
        "lane": category(["left", "right"]),
    },
    neutral=(0.0, 0.0),
    max_unknown=2,
)


class CanaryEnv(gymnasium.Env[Any, Any]):
    """Rewards 1 for the expected action, 0 for the neutral one, -1 for any other."""

    state_schema = SCHEMA
    action_spec = DRIVING
    period = PERIOD
    observation_space = spaces.Dict(
        {
            "where": spaces.Box(0, 1e6, (3,), np.float32),
            "speed": spaces.Box(0, 1e6, (1,), np.float32),
        }
    )
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, index: int) -> None:
        self.index, self.episode, self.steps = index, 0, 0
        self.given: list[tuple[int, int, Any]] = []

    @property
    def length(self) -> int:
        return LENGTHS[(self.index + self.episode - 1) % len(LENGTHS)]

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._seen()

    def step(self, action: Any) -> Any:
        assert type(action) is np.ndarray and action.dtype == np.float32 and action.shape == (2,)
        assert action in self.action_space, action
        assert self.steps < self.length, "a step after the end"
        self.given.append((self.episode, self.steps, action.copy()))
        expected = np.float32(COUNT * (self.steps + 1))
        reward = 1.0 if action[0] == expected else -1.0 if action.any() else 0.0
        self.steps += 1
        obs, info = self._seen()
        over = self.steps == self.length
        return obs, reward, over and self.episode % 2 == 0, over and self.episode % 2 == 1, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        # A mixture that Gymnasium's merging would not survive: int beside float, None beside bool.
        speed = 21 if self.index == 0 else 20.75 + self.index
        where = np.float32([self.index, self.episode, self.steps])
        state = {
            "env": self.index,
            "episode": self.episode,
            "step": self.steps,
            "speed": speed,
            "wet": None if self.index % 2 else False,
            "lane": "left" if self.index % 2 else None,
        }
        obs = {"where": where, "speed": np.float32([speed])}
        return obs, {"state": state, "steps": self.steps}


class CanaryPolicy:
    """Counts, and keeps what it saw as (env, episode, step), with ``reset`` between."""

    schema: Any = SCHEMA
    actions = DRIVING

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.states: list[Any] = []
        self.count = 0

    def reset(self) -> None:
        self.seen.append("reset")
        self.count = 0

    def step(self, state: Any, previous_action: Any) -> Any:
        self.seen.append((int(state["env"]), int(state["episode"]), int(state["step"])))
        self.states.append(dict(state))
        self.count += 1
        return SimpleNamespace(action=np.float32([COUNT * self.count, 0.0]))


def expected(index: int, actions: int) -> list[Any]:
    """What the policy of a sub-environment must have seen after so many actions."""
    seen: list[Any] = []
    episode = 0
    while True:
        episode += 1
        seen.append("reset")
        for step in range(LENGTHS[(index + episode - 1) % len(LENGTHS)]):
            if actions == 0:
                return seen
            seen.append((index, episode, step))
            actions -= 1


def wrapped(index: int, wrappers: Sequence[Callable[[Any], Any]] = (StateInfo,)) -> Any:
    env: Any = CanaryEnv(index)
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def sync(count: int, mode: AutoresetMode, **options: Any) -> SyncVectorEnv[Any, Any]:
    makers = [partial(wrapped, index) for index in range(count)]
    return SyncVectorEnv(makers, autoreset_mode=mode, **options)


def processes(count: int, mode: AutoresetMode, **options: Any) -> AsyncVectorEnv[Any, Any]:
    """In processes of their own. Not forked: this one may have threads."""
    makers = [partial(wrapped, index) for index in range(count)]
    return AsyncVectorEnv(makers, autoreset_mode=mode, context="forkserver", **options)


def controllers(count: int, **options: Any) -> list[Controller]:
    return [simulated(CanaryPolicy(), **options) for _ in range(count)]


def policy_of(controller: Controller) -> CanaryPolicy:
    policy = controller.model
    assert isinstance(policy, CanaryPolicy)
    return policy
