"""The contract of `act` under any fault: it returns, and what it returns is safe."""

from __future__ import annotations

import asyncio
import math
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.control.faults import CONTAINERS, SCALARS, Weather, raising
from tests.control.support import STATE, Bench, FakePolicy, Panic, answer, constant
from tests.safety.support import PERIOD
from wmrt.control import Channel
from wmrt.control.intake import Intake
from wmrt.core.errors import SafetyError
from wmrt.model.schema import StateSchema, numeric, vector
from wmrt.safety import Breakers, State

FULL = os.environ.get("WMRT_FULL") == "1"
IDS = {"ids": lambda _: ""}  # some of these cannot even be printed


@pytest.mark.parametrize("obs", CONTAINERS, **IDS)
def test_an_observation_that_is_no_state(obs: Any) -> None:
    bench = Bench(constant(0.1, 0.1))
    bench.act()
    outcome = bench.act(obs)
    assert (outcome.source, outcome.action, outcome.after) == ("fallback", (0.0, 0.0), State.OPEN)
    assert len(bench.policy.seen) == 1


@pytest.mark.parametrize("value", SCALARS, **IDS)
@pytest.mark.parametrize("name", list(STATE))
def test_any_value_in_any_field(name: str, value: Any) -> None:
    bench = Bench(constant(0.1, 0.1))
    outcome = bench.act(STATE | {name: value})
    if name != "speed":
        assert outcome.source == "policy"  # optional: at worst unknown
    else:
        assert (outcome.source == "policy") is (len(bench.policy.seen) == 1)


@pytest.mark.parametrize("value", SCALARS, **IDS)
def test_any_value_as_the_policys_answer(value: Any) -> None:
    for result in (value, answer(value), answer([value, 0.0]), answer([0.1, 0.1], predicted=value),
                   answer([0.1, 0.1], predicted={"gap": value, "pose": [value] * 3}),
                   answer([0.1, 0.1], chunk=value)):  # fmt: skip
        policy = FakePolicy(lambda s, p, result=result: result)  # type: ignore[misc]
        others = [Channel(name, FakePolicy(policy.answer).step) for name in "ab"]
        Bench(policy, channels=others).acts(3)


RAISED = [ValueError, MemoryError, RecursionError, AssertionError, OSError]
RAISED_APART = [asyncio.CancelledError, GeneratorExit, Panic]  # no `Exception`


@pytest.mark.parametrize("watchdog", [False, True])
@pytest.mark.parametrize("error", RAISED + RAISED_APART)
def test_everything_raises(error: type[BaseException], watchdog: bool) -> None:
    fails = raising(error)
    bench = Bench(
        FakePolicy(fails),
        fallback=fails,
        channels=[Channel("a", fails), Channel("b", fails, observe=fails, every=2)],
        recorder=SimpleNamespace(record=fails, command=fails),
        deadline=10.0,
        watchdog=watchdog,
    )
    assert bench.acts(10).source == "fallback"
    bench.controller.disengage()
    told = bench.controller.stats()
    assert told["causes"]["range"] == 10 and "internal" not in told["causes"]
    assert told["record_failures"] == 11
    bench.controller.close()


@pytest.mark.parametrize("error", RAISED_APART)
def test_whatever_an_observation_raises_latches(error: type[BaseException]) -> None:
    class Hostile(dict[str, Any]):
        def get(self, *args: Any) -> Any:
            raise error

    bench = Bench(constant(0.1, 0.1))
    assert bench.act(Hostile()).after is State.LATCHED


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_request_to_stop_passes(error: type[BaseException]) -> None:
    bench = Bench(FakePolicy(raising(error)))
    with pytest.raises(error):
        bench.controller.act(STATE)
    bench.policy.answer = lambda state, previous: answer(previous)
    assert bench.act().source == "policy"  # and leaves nothing broken


def test_a_clock_that_raises_holds_and_latches() -> None:
    bench = Bench(constant(0.1, 0.1))
    bench.act()
    bench.clock.now_ns = raising(OSError)  # type: ignore[method-assign]
    for _ in range(3):
        assert bench.controller.act(STATE).tolist() == pytest.approx([0.1, 0.1])
    assert bench.controller.breakers.state is State.LATCHED
    del bench.clock.now_ns
    assert bench.act().action == pytest.approx((0.1, 0.1))  # the time between is not known
    assert bench.act().action == (0.0, 0.0)


@pytest.mark.parametrize("now", [math.nan, math.inf, None, "now", object()], **IDS)
def test_a_clock_that_gives_nonsense(now: Any) -> None:
    bench = Bench(constant(0.1, 0.1))
    bench.act()
    bench.clock.now_ns = lambda: now  # type: ignore[method-assign]
    assert bench.controller.act(STATE).tolist() == pytest.approx([0.1, 0.1])
    assert bench.controller.breakers.state is State.LATCHED


def test_a_timer_that_raises() -> None:
    bench = Bench(constant(0.1, 0.1), timer=raising(OSError))
    assert bench.controller.act(STATE).tolist() == [0.0, 0.0]
    assert bench.controller.breakers.state is State.LATCHED
    assert bench.controller.stats()["record_failures"] == 1


def test_breakers_that_fail_hold_the_last_action() -> None:
    bench = Bench(constant(0.1, 0.1))
    bench.act()

    class Broken(Breakers):
        decide = emergency = begin = raising(ZeroDivisionError)

    bench.controller.breakers.__class__ = Broken
    for _ in range(3):
        assert bench.controller.act(STATE).tolist() == pytest.approx([0.1, 0.1])
        assert bench.controller.last and bench.controller.last.source == "fallback"


def weather_stream(seed: int, steps: int) -> tuple[Bench, list[bytes]]:
    """A controller in changing weather; in calm, an operator puts a latch right."""
    weather = Weather(seed)
    bench = Bench(
        FakePolicy(weather.policy),
        timer=weather.timer,
        fallback=weather.fallback,
        channels=[Channel("a", weather.channel), Channel("b", weather.channel, every=2)],
    )
    controller, log = bench.controller, []
    while bench.watch.seen < steps:
        weather.tick()
        if weather.fault(0.01):
            controller.estop(weather.rng.random() < 0.5)
        if weather.fault(0.01):
            controller.disengage()
        if weather.rng.random() < 0.002:
            controller.reset()
            bench.watch.restart(controller.breakers.reference)
        if not weather.stormy and not controller.breakers.engaged:
            controller.estop(False)
            for operation in (controller.reset_latch, controller.engage):
                try:
                    operation("Ada")
                except SafetyError as error:
                    log.append(str(error).encode())
        outcome = bench.act(weather.observation(), weather.seconds(PERIOD))
        log.append(np.float32(outcome.action).tobytes() + outcome.after.value.encode())
    return bench, log


def test_any_weather(seed: int) -> None:
    bench, _ = weather_stream(seed, 400_000 if FULL else 40_000)
    stats = bench.controller.stats()
    print(stats)
    assert all(stats["steps_in"].values()), "every state was visited"
    assert all(stats["trips"].values()), "every level tripped"
    assert all(stats["channel_failures"].values()) and stats["starved"] and stats["unknown_values"]
    assert stats["causes"]["fallback"] and stats["causes"]["clock"] and stats["causes"]["note"]
    assert stats["record_failures"] == 0 and "internal" not in stats["causes"]
    sources = stats["steps"] - stats["fallback_actions"]
    assert sources > stats["steps"] // 4, "the policy drove as well"


def test_the_same_weather_gives_the_same_bits(seed: int) -> None:
    (one, first), (two, second) = (weather_stream(seed, 1_500) for _ in range(2))
    assert first == second
    events = [
        [repr(event) for event in bench.controller.breakers.events.drain()] for bench in (one, two)
    ]
    assert events[0] == events[1]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELD = st.sampled_from([*STATE, "extra"])


@given(st.lists(st.tuples(ANYTHING | st.dictionaries(FIELD, ANYTHING), ANYTHING), max_size=8))
@settings(max_examples=1_000 if FULL else 100)
def test_anything_in_and_anything_from_the_policy(stream: list[tuple[Any, Any]]) -> None:
    answers = iter([action for _, action in stream for _ in range(2)])
    bench = Bench(FakePolicy(lambda state, previous: answer(next(answers))))
    for observed, _ in stream:
        bench.act(STATE | observed if isinstance(observed, dict) else observed)
        bench.act()


def test_an_unreadable_part_of_a_vector_is_unknown_to_policy_and_channels() -> None:
    schema = StateSchema(
        {"v": numeric("m/s", 0, 10), "pose": vector(3, "m", -1, 1)}, neutral=(0.0, 0.0)
    )
    intake = Intake(schema, None)
    for pose, read in (
        ([0.25, math.nan, 0.5], [0.25, None, 0.5]),
        ([0, "junk", 0.5], [0.0, None, 0.5]),
        ([1, 2], [None] * 3),
        ("zz", [None] * 3),
    ):
        state = intake.read({"v": 1.0, "pose": pose}, 0).state
        assert state is not None
        seen = state["pose"]
        assert (list(seen) if seen is not None else [None] * 3) == read, pose
