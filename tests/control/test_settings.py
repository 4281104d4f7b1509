"""Every argument of what stands in a control loop: what is refused, and in which words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.control.support import SCHEMA, STATE, FakePolicy, constant
from tests.safety.support import DRIVING, PERIOD
from wmrt.control import (
    Channel,
    ControlledEnv,
    Controller,
    PredictPolicy,
    StepClock,
    default_limits,
)
from wmrt.core.clock import ManualClock, SystemClock
from wmrt.core.errors import SafetyError
from wmrt.safety import Breakers

NOT_SECONDS = (0, 0.0, -1.0, math.nan, -math.inf, "0.1", None, True, np.True_, [0.1], 10**400, 1j)
NOT_FUNCTIONS = (5, "f", [], object())
LIMITS = default_limits(SCHEMA, DRIVING, PERIOD)


def policy(**changes: Any) -> Any:
    made: dict[str, Any] = {"schema": SCHEMA, "actions": DRIVING, "reset": print, "step": print}
    return SimpleNamespace(**{**made, **changes})


#: argument -> (words of the error, values that are none)
WRONG: dict[str, tuple[str, tuple[Any, ...]]] = {
    "period": ("a finite number of seconds above 0", (*NOT_SECONDS, math.inf)),
    "deadline": ("above 0 seconds, or math.inf", tuple(v for v in NOT_SECONDS if v is not None)),
    "breakers": ("wmrt.safety.Breakers", (LIMITS, Breakers, "on", 0, False)),
    "fallback": ("a function (state, last action) -> action", NOT_FUNCTIONS),
    "recorder": ("an object with record()", (*NOT_FUNCTIONS, print, SimpleNamespace(record=1))),
    "channels": ("a sequence of Channel", (5, None, print, [print, print], iter(()), "ab")),
    "clock": ("an object with now_ns()", (5, print, SystemClock, SimpleNamespace(now_ns=7))),
    "timer": ("a function () -> nanoseconds", (None, *NOT_FUNCTIONS)),
    "robot": ("a string that is not empty", ("", None, 7, b"robot")),
    "max_chunk_age": ("a whole number of at least 0", (-1, 1.0, math.nan, "3", None, True)),
    "max_age": (
        "a finite number of seconds above 0",
        (*(v for v in NOT_SECONDS if v is not None), math.inf),
    ),
}
CASES = [(name, words, value) for name, (words, values) in WRONG.items() for value in values]


def refused(words: str, make: Callable[[], object], given: Any) -> None:
    with pytest.raises(SafetyError) as caught:
        make()
    said = str(caught.value)
    assert words in said and said.endswith(f"got {' '.join(repr(given).split())[:80]}"), said


@pytest.mark.parametrize(
    ("name", "words", "value"), CASES, ids=[f"{name}={value!r:.20}" for name, _, value in CASES]
)
def test_an_argument_of_the_controller_that_cannot_be_meant(
    name: str, words: str, value: Any
) -> None:
    refused(f"{name} must be {words}", lambda: Controller(policy(), **{name: value}), value)


@pytest.mark.parametrize("wrong", [None, "highway", 5, FakePolicy, policy(step=None)])
def test_a_model_that_is_no_policy(wrong: Any) -> None:
    refused("model must be an object with step() and reset()", lambda: Controller(wrong), wrong)


def test_a_model_without_a_contract() -> None:
    refused("model.actions must be an ActionSpec", lambda: Controller(policy(actions=2)), 2)
    refused("model.schema must be a StateSchema", lambda: Controller(policy(schema={})), {})


@pytest.mark.parametrize("number", [np.float64(0.1), np.float32(0.125), 1, np.int64(2)])
def test_every_kind_of_number_is_a_period(number: Any) -> None:
    controller = Controller(policy(), number, deadline=number, max_age=number, max_chunk_age=0)
    assert controller.breakers.limits.period == float(number)
    assert Controller(policy(), deadline=math.inf).act(STATE).shape == (2,)


def test_an_age_is_kept_to_the_nanosecond() -> None:
    clock = ManualClock(10**9)
    controller = Controller(constant(0, 0), clock=clock, max_age=0.25, deadline=math.inf)
    controller.act(STATE, captured_ns=10**9 - 250_000_000)
    assert controller.last is not None and controller.last.tripped == frozenset()
    clock.advance(0.25)
    controller.act(STATE, captured_ns=10**9 - 1)
    assert len(controller.last.tripped) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "a channel's name must be a string that is not empty, got ''"),
        ({"name": 3}, "a channel's name must be a string"),
        ({"fn": 5}, "channel 'a': fn must be a function (state, previous action) -> action, got 5"),
        ({"fn": None}, "channel 'a': fn must be"),
        ({"reset": 0}, "channel 'a': reset must be a function (), or None, got 0"),
    ],
)
def test_a_channel_that_cannot_vote(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SafetyError, match=re.escape(said)):
        Channel(**{"name": "a", "fn": lambda state, previous: (0, 0), **changes})


def test_a_channel_of_no_policy() -> None:
    refused("channel 'a': policy must be", lambda: Channel.from_policy("a", 5), 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("period", [*NOT_SECONDS, math.inf])
def test_a_step_clock_moves_forward(period: Any) -> None:
    refused("period must be a finite number of seconds above 0", lambda: StepClock(period), period)


def test_the_wrappers_arguments() -> None:
    env: Any = gymnasium.Env()
    made: dict[str, tuple[str, Any]] = {
        "breakers": ("breakers must be wmrt.safety.Breakers", "on"),
        "schema": ("schema must be a StateSchema", {}),
        "state": ("state must be a function (observation, info) -> state", 5),
        "clock": ("clock must be an object with now_ns()", 5),
    }
    for name, (words, value) in made.items():
        options = {name: value}
        refused(words, lambda options=options: ControlledEnv(env, **options), value)  # type: ignore[misc]
    controller: Any = Controller(policy())
    refused("controller must be a Controller", lambda: PredictPolicy(env), env)
    refused("state must be a function", lambda: PredictPolicy(controller, 5), 5)  # type: ignore[arg-type]
