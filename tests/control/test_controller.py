"""The controller: observations in, actions out, settings, counters."""

from __future__ import annotations

import dataclasses
import json
import math
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tests.control.support import (
    SCHEMA,
    STATE,
    UNFIT,
    Bench,
    FakePolicy,
    answer,
    constant,
    simulated,
)
from tests.safety.support import DRIVING, PERIOD
from wmrt.control import Controller, default_limits
from wmrt.core.clock import SystemClock
from wmrt.core.errors import SafetyError
from wmrt.safety import Breakers, Level, State


def test_a_good_step() -> None:
    bench = Bench(constant(0.25, -0.125))
    outcome = bench.act()
    assert outcome.action == (0.25, -0.125)
    assert (outcome.source, outcome.before, outcome.after) == ("policy", State.CLOSED, State.CLOSED)
    assert (outcome.step, outcome.now_ns, outcome.late) == (1, 100_000_000, False)
    assert outcome.tripped == frozenset()
    assert bench.causes() == []


def test_the_policy_is_told_what_was_sent() -> None:
    bench = Bench(constant(0.0, 0.9))  # too fast: blocked
    bench.acts(3)
    assert [previous.tolist() for _, previous in bench.policy.seen] == [[0.0, 0.0]] * 3
    assert bench.policy.seen[0][1].dtype == np.float32
    bench = Bench(FakePolicy(lambda state, previous: answer(previous + np.float32(0.25))))
    bench.acts(3)
    assert [p.tolist() for _, p in bench.policy.seen] == [[0, 0], [0.25, 0.25], [0.5, 0.5]]


def test_the_previous_action_and_the_state_are_copies() -> None:
    def spoil(state: Any, previous: Any) -> Any:
        previous[:] = 99.0
        state.clear()
        return answer([0.1, 0.1])

    bench = Bench(FakePolicy(spoil))
    given = dict(STATE)
    bench.act(given)
    assert given == STATE
    assert bench.controller.breakers.reference == pytest.approx((0.1, 0.1))


def test_what_act_returns_is_the_callers_own() -> None:
    controller = simulated(constant(0.1, 0.1))
    controller.act(STATE)[:] = 99.0
    assert controller.act(STATE).tolist() == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(
    "obs",
    [
        STATE,
        {"state": STATE, "crashed": False},
        MappingProxyType(STATE),
        {"state": MappingProxyType(STATE)},
    ],
)
def test_the_state_is_found(obs: Any) -> None:
    bench = Bench(constant(0.1, 0.1))
    assert bench.act(obs).source == "policy"
    assert bench.policy.seen[0][0] == STATE


def test_a_schema_with_a_field_called_state() -> None:
    from wmrt.model.schema import StateSchema, numeric

    policy = constant(0.1, 0.1)
    policy.schema = StateSchema({"state": numeric("m", 0, 1)}, neutral=(0.0, 0.0))
    assert Bench(policy).act({"state": 0.5}).source == "policy"


@pytest.mark.parametrize(
    "action",
    [[0.1, 0.2], (0.1, 0.2), np.array([0.1, 0.2]), np.float16([0.1, 0.2]), [np.float32(0), 0]],
)
def test_an_action_may_be_any_vector_of_numbers(action: Any) -> None:
    outcome = Bench(FakePolicy(lambda s, p: answer(action))).act()
    assert outcome.source == "policy"
    assert outcome.action == pytest.approx(tuple(float(a) for a in action), abs=1e-7)


class Tensor:
    """Gives its numbers the way torch's tensors do, or refuses as one on another device does."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if not self.values:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return np.array(self.values, np.float32)


def test_an_action_may_be_a_tensor() -> None:
    policy = FakePolicy(lambda s, p: answer(Tensor(0.1, 0.2)))
    assert Bench(policy).act().action == pytest.approx((0.1, 0.2))
    assert Bench(FakePolicy(lambda s, p: answer(Tensor()))).act().tripped == {Level.RANGE}


def test_unreadable_values_reach_neither_policy_nor_channels() -> None:
    bench = Bench(constant(0.1, 0.1))
    outcome = bench.act(STATE | {"gap": math.nan, "lane": "middle", "wet": "maybe"})
    assert outcome.source == "policy"
    assert bench.policy.seen[0][0] == STATE | {"gap": None, "lane": None, "wet": None}
    assert bench.causes() == ["note"] * 3
    # known by now: no more events, but counted
    bench.act(STATE | {"gap": math.nan, "lane": "middle", "wet": "maybe"})
    assert bench.causes() == ["note"] * 3
    assert bench.controller.stats()["unknown_values"] == 6
    bench.act()
    bench.act(STATE | {"gap": math.inf})
    assert bench.causes() == ["note"] * 4


def test_too_many_unknown_values_are_unfit() -> None:
    bench = Bench(constant(0.1, 0.1))
    assert bench.act({"speed": 20.0, "wet": True}).source == "policy"
    outcome = bench.act({"speed": 20.0})
    assert (outcome.source, outcome.after) == ("fallback", State.OPEN)
    assert len(bench.policy.seen) == 1
    assert bench.last_event().kind in ("max_unknown", "missing")


def test_predictions_are_checked_against_the_schema() -> None:
    for predicted, passes in (
        ({"speed": 21.0, "gap": None, "pose": [0.0, None, 1.0], "lane": "left", "wet": True}, True),
        ({"speed": np.float32(21.0), "pose": np.zeros(3)}, True),
        ({"speed": 20, "pose": [None] * 3}, True),
        (None, True),
        ({"speed": 50.0}, False),
        ({"pose": [0.0, 11.1, 0.0]}, False),
        ({"gap": math.nan}, False),
        ({"gap": "12"}, False),
        ({"gap": True}, False),
        ({"gap": object()}, False),
        ({"gap": 10**400}, False),
        ([1.0, 2.0], False),
    ):
        outcome = Bench(constant(0.1, 0.1, predicted=predicted)).act()
        assert (outcome.source == "policy") is passes, predicted
        assert (outcome.tripped == {Level.RANGE}) is not passes, predicted


# Capture times


def test_capture_times() -> None:
    bench = Bench(constant(0.1, 0.1), max_age=0.25)
    assert bench.act(captured_ns=50_000_000).source == "policy"
    for captured, kind in (
        (50_000_000, "out of order"),
        (40_000_000, "out of order"),
        (10**12, "future"),
        ("now", "type"),
        (1.5e8, "type"),
        (10**400, "future"),
    ):
        outcome = bench.act(captured_ns=captured)
        assert outcome.tripped == {Level.VALIDITY}
        assert bench.last_event().kind == kind
    bench.acts(30)
    assert bench.act(captured_ns=bench.clock.now_ns() - 100_000_000).source == "policy"
    assert bench.act(captured_ns=bench.clock.now_ns() - 190_000_000).tripped
    bench.acts(30)
    bench.controller.reset()  # capture times start anew
    bench.watch.restart((0.0, 0.0))
    outcome = bench.act(captured_ns=bench.clock.now_ns() - 350_000_001)
    assert outcome.tripped == {Level.VALIDITY}
    assert bench.last_event().kind == "stale"


# Operators


def test_defaults_come_from_the_policy() -> None:
    controller = Controller(constant(0.0, 0.0))
    limits = controller.breakers.limits
    assert (limits.spec, limits.period, limits.neutral) == (DRIVING, 0.1, (0.0, 0.0))
    assert [(s.name, s.low, s.high, s.unit) for s in limits.state] == [
        ("speed", 0.0, 40.0, "m/s"), ("gap", 0.0, 100.0, "m"), ("pose", -10.0, 10.0, "m"),
    ]  # fmt: skip
    assert isinstance(controller.clock, SystemClock)
    assert controller.act(STATE).tolist() == [0.0, 0.0]


def test_breakers_that_do_not_fit() -> None:
    made = default_limits(SCHEMA, DRIVING, PERIOD)
    for wrong in (
        dataclasses.replace(made, period=0.05),
        default_limits(SCHEMA, type(DRIVING)(DRIVING.dims[::-1]), PERIOD),
    ):
        with pytest.raises(SafetyError, match="do not fit a policy"):
            Controller(constant(0.0, 0.0), PERIOD, breakers=Breakers(wrong))
    assert Controller(constant(0, 0), PERIOD, breakers=Breakers(made)).breakers.limits is made


@pytest.mark.parametrize("deadline", [0.0, -1.0, math.nan])
def test_a_deadline_that_cannot_be_met(deadline: float) -> None:
    with pytest.raises(SafetyError, match="deadline must be above 0"):
        Controller(constant(0.0, 0.0), deadline=deadline)


# The fallback


def test_a_fallback_of_ones_own() -> None:
    seen: list[Any] = []

    def brake(state: Any, last: tuple[float, ...]) -> tuple[float, float]:
        seen.append((state, last))
        return (0.0, -1.0)

    bench = Bench(constant(0.1, 0.1), fallback=brake)
    bench.act()
    outcome = bench.act({})
    assert outcome.source == "fallback" and outcome.action[1] == pytest.approx(-0.5)
    bench.act()
    assert seen[0] == (None, pytest.approx((0.1, 0.1)))
    assert seen[1][0] == STATE


def test_a_fallback_that_raises_or_spoils_its_input() -> None:
    def fails(state: Any, last: Any) -> Any:
        if state is not None:
            state.clear()
        raise KeyError

    bench = Bench(constant(1.5, 0.0), fallback=fails)
    assert bench.acts(5).action == (0.0, 0.0)
    assert "fallback" in bench.causes()


# Accounting


class Notebook:
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def record(self, outcome: Any, inputs: Any) -> None:
        self.rows.append((outcome, inputs))
        if len(self.rows) == 2:
            raise OSError("disk full")

    def command(self, name: str, arguments: Any, now_ns: int) -> None:
        self.rows.append((name, dict(arguments), now_ns))
        if name == "disengage":
            raise OSError("disk full")


def test_the_recorder_gets_every_outcome_and_may_fail() -> None:
    notebook = Notebook()
    bench = Bench(constant(0.1, 0.1), recorder=notebook)
    outcomes = [bench.act(), bench.act(), bench.act({}), bench.act()]
    assert [row[0] for row in notebook.rows] == outcomes
    assert [row[1].observation for row in notebook.rows] == [STATE, STATE, {}, STATE]
    assert [row[1].asked for row in notebook.rows] == [True, True, False, True]
    assert [row[1].now_ns for row in notebook.rows] == [outcome.now_ns for outcome in outcomes]
    assert bench.controller.stats()["record_failures"] == 1


def test_the_recorder_gets_every_command_after_it_was_done() -> None:
    notebook = Notebook()
    bench = Bench(constant(0.1, 0.1), recorder=notebook)
    controller = bench.controller
    controller.reset([0.5, 0.0])
    controller.reset()
    bench.act()
    for refused in (lambda: controller.engage(""), lambda: controller.reset_latch("Ada")):
        with pytest.raises(SafetyError):
            refused()
    controller.change_task("dock")
    controller.disengage()
    controller.engage("Ada")
    controller.estop()
    bench.act()
    controller.estop(False)
    controller.reset_latch("Ada")
    controller.close()
    controller.close()
    told = [row for row in notebook.rows if len(row) == 3]
    assert [(name, arguments) for name, arguments, _ in told] == [
        ("reset", {"measured": [0.5, 0.0], "heal": True, "dropped": None}),
        ("reset", {"measured": None, "heal": True, "dropped": None}),
        ("change_task", {"task": "dock", "dropped": None}),
        ("disengage", {}),
        ("engage", {"operator": "Ada", "measured": None}),
        ("estop", {"pressed": True}),
        ("estop", {"pressed": False}),
        ("reset_latch", {"operator": "Ada"}),
        ("close", {"dropped": None}),
    ]
    times = [row[0].now_ns for row in notebook.rows if len(row) == 2]
    assert [now for *_, now in told] == [0, 0, *times[:1] * 4, *times[1:] * 3]
    assert controller.stats()["record_failures"] == 1


def test_the_record_says_where_a_stop_came_in() -> None:
    notebook = Notebook()
    bench = Bench(FakePolicy(lambda s, p: answer(p)), recorder=notebook)
    bench.act()
    bench.controller.estop()
    bench.act()
    bench.controller.reset()
    bench.policy.answer = lambda s, p: (bench.controller.estop(), answer(p))[1]
    bench.act()
    steps = [row[1] for row in notebook.rows if len(row) == 2]
    assert [inputs.estop for inputs in steps] == ["", "begin", "decide"]


def test_stats() -> None:
    bench = Bench(constant(0.0, 0.0))
    bench.acts(4)
    bench.acts(2, UNFIT)
    bench.act()
    bench.policy.answer = lambda s, p: answer([0.0, 1.05])
    bench.act()
    stats = json.loads(json.dumps(bench.controller.stats()))
    assert stats["steps"] == 8 and stats["state"] == "open"
    assert stats["trips"] == {"validity": 2, "range": 0, "rate": 0, "consensus": 0}
    assert stats["clamps"] == {"range": 1, "rate": 0}
    assert (stats["fallback_actions"], stats["longest_fallback_streak"]) == (4, 4)
    assert stats["steps_in"]["closed"] == 4 and stats["steps_in"]["open"] == 4
    assert stats["act_ms"]["n"] == 8 and stats["policy_ms"]["n"] == 6
    assert stats["causes"] == {"input": 2, "note": 1, "range_clamp": 1}
    assert stats["deadline_misses"] == 0


def test_durations() -> None:
    bench = Bench(FakePolicy(lambda s, p: (bench.timer.advance(0.003), answer([0.0, 0.0]))[1]))
    outcome = bench.act()
    assert (outcome.policy_ns, outcome.act_ns) == (3_000_000, 3_000_000)
    assert bench.act({}).policy_ns is None
    assert bench.controller.stats()["policy_ms"]["p50"] == pytest.approx(3.0)


def test_the_ring_of_durations_is_bounded() -> None:
    from wmrt.control.timing import Durations

    ring = Durations(capacity=4)
    assert ring.values() == [] and ring.summary_ms()["p50"] is None
    for n in range(10):
        ring.add(n * 1_000_000)
    assert ring.values() == [6_000_000, 7_000_000, 8_000_000, 9_000_000]
    assert (ring.total, ring.summary_ms()["max"]) == (10, pytest.approx(9.0))
