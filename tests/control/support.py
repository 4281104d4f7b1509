"""Doubles for the controller's tests: policies, a timer, a schema; no torch."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.safety.support import DRIVING, PERIOD, Watch
from wmrt.control import Controller, StepClock
from wmrt.core.clock import ManualClock
from wmrt.core.types import ActionSpec
from wmrt.model.schema import StateSchema, category, flag, numeric, vector

SCHEMA = StateSchema(
    {
        "speed": numeric("m/s", 0.0, 40.0, required=True),
        "gap": numeric("m", 0.0, 100.0),
        "pose": vector(3, "m", -10.0, 10.0),
        "lane": category(["left", "right"]),
        "wet": flag(),
    },
    neutral=(0.0, 0.0),
    max_unknown=3,
)
STATE: dict[str, Any] = {
    "speed": 21.5,
    "gap": 40.0,
    "pose": [1.0, -2.0, 0.5],
    "lane": "left",
    "wet": False,
}
UNFIT = {name: value for name, value in STATE.items() if name != "speed"}


class Panic(BaseException):
    """What a library written in Rust raises where it would abort."""


class FakePolicy:
    """Answers with whatever ``answer`` (state, previous) returns or raises; keeps what it saw."""

    schema: Any = SCHEMA
    actions: ActionSpec = DRIVING

    def __init__(self, answer: Callable[[Any, Any], Any]) -> None:
        self.answer = answer
        self.seen: deque[tuple[Any, Any]] = deque(maxlen=1_000)
        self.resets = 0

    def reset(self) -> None:
        self.resets += 1

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        self.seen.append((state, previous_action))
        return self.answer(state, previous_action)


def answer(action: Any, **rest: Any) -> SimpleNamespace:
    """A step result; ``chunk`` and ``predicted`` only if given."""
    return SimpleNamespace(action=action, **rest)


def constant(steering: float, acceleration: float, **rest: Any) -> FakePolicy:
    result = answer(np.array([steering, acceleration], np.float32), **rest)
    return FakePolicy(lambda state, previous: result)


class FakeTimer:
    """A stopwatch that moves only when told."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


class Bench:
    """A controller on manual time whose every action is watched."""

    def __init__(self, policy: Any, **options: Any) -> None:
        self.timer = FakeTimer()
        self.clock = ManualClock()
        options.setdefault("timer", self.timer)
        options.setdefault("clock", self.clock)
        self.policy = policy
        self.controller = Controller(policy, PERIOD, **options)
        self.watch = Watch(policy.actions, self.controller.breakers.reference)

    def act(self, obs: Any = STATE, dt: float = PERIOD, **rest: Any) -> Any:
        self.clock.advance(dt)
        action = self.controller.act(obs, **rest)
        assert type(action) is np.ndarray and action.dtype == np.float32
        self.watch.see(self.clock.now_ns(), action.tolist())
        return self.controller.last

    def acts(self, count: int, obs: Any = STATE, **rest: Any) -> Any:
        for _ in range(count):
            outcome = self.act(obs, **rest)
        return outcome

    def causes(self) -> list[str]:
        return [event.cause.value for event in self.controller.breakers.events.snapshot()]

    def last_event(self) -> Any:
        return self.controller.breakers.events.snapshot()[-1]


def simulated(policy: Any, **options: Any) -> Controller:
    """By steps, and with no deadline: what it does must not depend on how busy the machine is."""
    options.setdefault("deadline", math.inf)
    return Controller(policy, PERIOD, clock=StepClock(PERIOD), **options)
