"""A cart on a rail that imagines exactly what would happen to it; no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.control.support import answer
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.schema import StateSchema, numeric
from wmrt.safety import Limits

PERIOD = 0.1
PLACES = 4
SCHEMA = StateSchema(
    {
        "position": numeric("m", -20.0, 20.0, decimals=PLACES),
        "speed": numeric("m/s", -20.0, 20.0, decimals=PLACES),
    },
    neutral=(0.0,),
    max_unknown=2,
)
#: From one end of its range to the other in one period: no rate limit but the box.
FORCE = ActionSpec((ActionDim("force", "N", -4.0, 4.0, 80.0, 80.0),))
#: 0.1 of [-1, 1] a period up, 0.25 down.
SLOW_FORCE = ActionSpec((ActionDim("force", "N", -4.0, 4.0, 4.0, 10.0),))


def limits(actions: ActionSpec = FORCE, **options: Any) -> Limits:
    return Limits.from_spec(actions, period=PERIOD, **options)


class Cart:
    """1 kg, a double integrator. The reward is minus the squared distance from 0, and speed a
    little; the policy pushes as ``chunk`` [H, 1] says, whatever happens.

    Attributes:
        imagined: steps imagined so far, by this cart and its forks.
        spoil: changes imagined rewards [N, T], given the plans; to play a model that fails.
    """

    schema: Any = SCHEMA

    def __init__(self, chunk: Any = None, actions: ActionSpec = FORCE) -> None:
        self.actions = actions
        self.chunk = np.zeros((8, 1), np.float32) if chunk is None else np.array(chunk, np.float32)
        self.now = np.zeros(2)
        self.seen: list[tuple[Any, Any]] = []
        self.resets = self.forks = 0
        self.calls: list[int] = []
        self.spoil: Callable[[Any, Any], Any] = lambda plans, reward: reward

    @property
    def imagined(self) -> int:
        return sum(self.calls)

    def reset(self) -> None:
        self.resets += 1

    def fork(self) -> Cart:
        self.forks += 1
        twin = type(self)(self.chunk, self.actions)
        twin.spoil, twin.calls = self.spoil, self.calls
        return twin

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        self.seen.append((dict(state), np.array(previous_action)))
        self.now = np.array([state.get("position") or 0.0, state.get("speed") or 0.0])
        ahead = self.roll(self.chunk[None, :1])[0, 0]
        predicted = {"position": float(ahead[0]), "speed": float(ahead[1])}
        return answer(self.chunk[0], chunk=self.chunk, predicted=predicted)

    def roll(self, plans: Any) -> Any:
        """float64[N, T, 2]: position and speed after each action."""
        position, speed = (np.full(len(plans), part) for part in self.now)
        states = []
        for t in range(plans.shape[1]):
            position = position + PERIOD * speed
            speed = speed + PERIOD * 4.0 * np.asarray(plans[:, t, 0], np.float64)
            states.append(np.stack([position, speed], 1))
        return np.stack(states, 1)

    def imagine(self, plans: Any) -> Any:
        self.calls.append(plans.shape[0] * plans.shape[1])
        states = self.roll(plans)
        reward = -np.square(states[..., 0]) - 0.1 * np.square(states[..., 1])
        q = np.rint(np.clip(states, -20.0, 20.0) * 10.0**PLACES).astype(np.int64)
        reward = self.spoil(plans, reward)
        return SimpleNamespace(q=q, reward=reward, proceed=np.ones_like(reward))
