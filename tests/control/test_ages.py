"""Capture times: of the whole state, and of each field."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.control.faults import Hostile, HostileMapping
from tests.control.support import Bench, FakePolicy, answer
from wmrt.control.ages import Ages
from wmrt.core.clock import ManualClock
from wmrt.model.schema import StateSchema, category, flag, numeric, vector
from wmrt.safety import Level

MS = 1_000_000
SCHEMA = StateSchema(
    {
        "speed": numeric("m/s", 0.0, 40.0, required=True, max_age=0.1),
        "gap": numeric("m", 0.0, 100.0, max_age=0.2),
        "pose": vector(3, "m", -10.0, 10.0, max_age=0.3),
        "lane": category(["left", "right"]),
        "wet": flag(max_age=5.0),
    },
    neutral=(0.0, 0.0),
    max_unknown=2,
)
STATE: dict[str, Any] = {
    "speed": 20.0, "gap": 40.0, "pose": [1.0, -2.0, 0.5], "lane": "left", "wet": False,
}  # fmt: skip


def stand(**options: Any) -> Bench:
    policy = FakePolicy(lambda state, previous: answer(previous))
    policy.schema = SCHEMA
    bench = Bench(policy, clock=ManualClock(10**12), **options)
    bench.clock = bench.controller.clock  # type: ignore[assignment]
    return bench


def ago(bench: Bench, **ms: float) -> dict[str, int]:
    """Capture times as of the next step, which is 100 ms from now."""
    now = bench.clock.now_ns() + 100 * MS
    return {name: now - round(value * MS) for name, value in ms.items()}


FRESH = {"speed": 0.0, "gap": 0.0, "pose": 0.0, "wet": 0.0}


def kinds(bench: Bench) -> list[tuple[str, str]]:
    return [(e.field, e.kind) for e in bench.controller.breakers.events.drain()]


def test_every_field_within_its_own_age() -> None:
    bench = stand()
    times = ago(bench, speed=100.0, gap=200.0, pose=300.0, wet=5000.0)
    assert bench.act(STATE, captured_ns=times).source == "policy"
    assert kinds(bench) == [] and bench.policy.seen[-1][0] == STATE


def test_a_stale_required_field_makes_the_state_unfit() -> None:
    bench = stand()
    times = ago(bench, **FRESH | {"speed": 100.000001})
    outcome = bench.act(STATE, captured_ns=times)
    assert outcome.source == "fallback" and outcome.tripped == {Level.VALIDITY}
    event = bench.last_event()
    assert (event.field, event.kind, event.value, event.limit) == (
        "speed", "stale", 100_000_001, 100_000_000,
    )  # fmt: skip
    assert not bench.policy.seen


@pytest.mark.parametrize(("name", "age"), [("gap", 200.1), ("pose", 301.0), ("wet", 6000.0)])
def test_a_stale_optional_field_is_unknown_and_reported_once(name: str, age: float) -> None:
    bench = stand()
    state = STATE | {"pose": [1.0, 2.0, 3.0]}
    for _ in range(3):
        outcome = bench.act(state, captured_ns=ago(bench, **FRESH | {name: age}))
        assert outcome.source == "policy"
        assert bench.policy.seen[-1][0] == state | {name: None}
        age += 100.0 * (name == "wet")  # the sensor is dead; the others send anew
    assert kinds(bench) == [(name, "stale")]
    assert bench.controller.stats()["unknown_values"] == 3
    bench.act(state, captured_ns=ago(bench, **FRESH))
    assert bench.policy.seen[-1][0] == state
    assert state["pose"] == [1.0, 2.0, 3.0], "the caller's own is left alone"


def test_stale_fields_count_as_unknown_ones() -> None:
    bench = stand()
    times = ago(bench, **FRESH | {"gap": 500.0, "wet": 9000.0})
    assert bench.act(STATE, captured_ns=times).source == "policy"
    outcome = bench.act(STATE | {"lane": None}, captured_ns=times | ago(bench, speed=0, pose=0))
    assert outcome.source == "fallback"
    assert ("", "max_unknown") in kinds(bench)


def test_one_reading_for_all_is_judged_field_by_field() -> None:
    bench = stand()
    now = bench.clock.now_ns() + 100 * MS
    assert bench.act(STATE, captured_ns=now - 100 * MS).source == "policy"
    assert bench.policy.seen[-1][0] == STATE
    now += 350 * MS
    outcome = bench.act(STATE, 0.35, captured_ns=now - 250 * MS)
    assert outcome.source == "fallback"  # speed
    assert kinds(bench) == [("speed", "stale"), ("gap", "stale")]


def test_order_is_kept_per_field() -> None:
    bench = stand()
    bench.act(STATE, captured_ns=ago(bench, speed=0, gap=0, pose=0, wet=0))
    held = ago(bench, gap=100.0, pose=100.0, wet=100.0)
    assert bench.act(STATE, captured_ns=held | ago(bench, speed=0)).source == "policy"
    assert kinds(bench) == []  # an equal time is the same reading, still held
    older = ago(bench, gap=201.0, pose=100.0, wet=0.0, speed=0.0)
    bench.act(STATE, captured_ns=older)
    assert kinds(bench) == [("gap", "out of order")] and bench.policy.seen[-1][0]["gap"] is None
    outcome = bench.act(STATE, captured_ns=ago(bench, **FRESH | {"speed": 101.0}))
    assert outcome.source == "fallback" and ("speed", "out of order") in kinds(bench)
    bench.controller.reset()
    assert bench.act(STATE, captured_ns=older).tripped == {Level.VALIDITY}  # stale by now, in order
    assert ("speed", "stale") in kinds(bench)


def test_times_of_both_forms_are_one_order() -> None:
    ages = Ages(SCHEMA, None)
    assert ages.check(1000, 900, STATE) == ([], {})
    _, unusable = ages.check(1000, {"lane": 899}, STATE)
    assert unusable["lane"].kind == "out of order"
    assert ages.check(1000, dict.fromkeys(STATE, 950), STATE) == ([], {})
    faults, _ = ages.check(1000, 940, STATE)
    assert [(f.field, f.kind) for f in faults] == [("captured_ns", "out of order")]


def test_a_field_with_an_age_needs_a_time() -> None:
    bench = stand()
    bench.act(STATE | {"gap": None}, captured_ns=ago(bench, speed=0, pose=0, wet=0))
    assert kinds(bench) == [("gap", "empty")]  # no value, so none that needs a time
    bench.act(STATE, captured_ns=ago(bench, speed=0, pose=0, wet=0))
    assert kinds(bench) == [("gap", "undated")] and bench.policy.seen[-1][0]["gap"] is None
    outcome = bench.act(STATE, captured_ns=ago(bench, gap=0, pose=0, wet=0))
    assert outcome.source == "fallback" and ("speed", "undated") in kinds(bench)


def test_the_general_age_goes_for_every_field() -> None:
    bench = stand(max_age=0.15)
    bench.act(STATE, captured_ns=ago(bench, **FRESH | {"gap": 160.0, "lane": 151.0, "pose": 150.0}))
    assert sorted(kinds(bench)) == [("gap", "stale"), ("lane", "stale")]


@pytest.mark.parametrize(
    ("times", "finding"),
    [
        ({"sped": 0}, ("sped", "undeclared")),
        ({3: 0}, ("3", "undeclared")),
        ({"speed": "now"}, ("speed", "capture time")),
        ({"speed": 1.5}, ("speed", "capture time")),
        ({"speed": True}, ("speed", "capture time")),
        ({"speed": None}, ("speed", "capture time")),
        ({"speed": 10**30}, ("speed", "future")),
        (HostileMapping(), ("captured_ns", "OSError")),
        ("now", ("captured_ns", "type")),
        (1.5, ("captured_ns", "type")),
        ([1], ("captured_ns", "type")),
        (Hostile(), ("captured_ns", "type")),
    ],
    ids=lambda _: "",
)
def test_times_that_are_none(times: Any, finding: tuple[str, str]) -> None:
    bench = stand()
    given = ago(bench, **FRESH) | times if type(times) is dict else times
    assert bench.act(STATE, captured_ns=given).source == "fallback"
    assert finding in kinds(bench)


def test_a_clock_that_jumps_back_makes_the_present_the_future() -> None:
    bench = stand()
    bench.act(STATE, captured_ns=ago(bench, **FRESH))
    bench.clock.advance(-10.0)
    times = ago(bench, **dict.fromkeys(FRESH, -10_000.0 + 100.0))
    assert bench.act(STATE, captured_ns=times).source == "fallback"
    assert ("speed", "future") in kinds(bench)


def test_any_times_against_a_second_reading(seed: int) -> None:
    """An independent judgement of random capture times, field by field."""
    draw = random.Random(seed)
    names = list(STATE)
    limits = {"speed": 100, "gap": 200, "pose": 300, "wet": 5000}
    ages, last, now = Ages(SCHEMA, None), dict[str, int](), 10**6
    for _ in range(2_000):
        now += draw.choice([0, 1, 50, 150])
        times = {
            name: now - draw.choice([-1, 0, 1, 99, 100, 101, 200, 201, 300, 301, 6000])
            for name in names
            if draw.random() < 0.8
        }
        bad = set()
        for name in names:
            if name not in times:
                bad |= {name} if name in limits else set()
            elif times[name] > now or times[name] < last.get(name, 0):
                bad.add(name)
            else:
                last[name] = times[name]
                if name in limits and now - times[name] > limits[name]:
                    bad.add(name)
        stamped = {name: at * MS for name, at in times.items()}
        faults, unusable = ages.check(now * MS, stamped, STATE)
        assert {finding.field for finding in faults} | set(unusable) == bad
        assert [finding.field for finding in faults] == ["speed"] * ("speed" in bad)
