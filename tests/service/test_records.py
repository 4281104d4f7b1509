"""A robot's last steps: what a slot tells, what is kept, and that it is bounded."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from wmrt.core.measure import median
from wmrt.core.wire import Acted
from wmrt.safety import Cause, Event, Level, State
from wmrt.service.records import (
    EVENTS,
    NOTES,
    RECENT,
    SLOT,
    SLOTS,
    TOLD,
    Record,
    acted_brief,
)

SLOT_NS = round(SLOT * 1e9)


def acted(step: int = 1, **changes: Any) -> Acted:
    answer = Acted(
        *("r1", 7, 0, step, step, (0.25, -0.5), "policy", "closed", (), False, 0, None),
        *(1000, 500_000, 700_000),
    )
    return answer._replace(**changes)


def event(cause: Cause = Cause.RATE, **changes: Any) -> Event:
    made = Event(
        *(5_000_000, "r1", 3, Level.RATE, cause, "a", "step", float("nan"), 0.1),
        *((0.5, 0.0), (0.1, 0.0), State.CLOSED, State.CLOSED, "0" * 8),
    )
    return made._replace(**changes)


def test_a_slot_tells_the_most_remarkable_of_its_steps() -> None:
    record = Record()
    record.add(acted(1, action=(0.1, -0.2)), 1_000)
    record.add(
        acted(2, action=(0.4, 0.3), act_ns=2_500_000, late=True, tripped=(2, 4), source="blocked"),
        1_000 + SLOT_NS // 2,
    )
    record.add(acted(3, action=(-0.3, 0.0), breakers="half_open"), 999 + SLOT_NS)
    record.add(acted(4), 1_000 + SLOT_NS)
    first, second = (slot.to_json() for slot in record.slots)
    assert first == {
        "i": 0, "at_ms": 0.001, "steps": 3, "act_ms": 2.5, "late": 1, "source": "blocked",
        "breakers": "half_open", "tripped": [2, 4], "low": [-0.3, -0.2], "high": [0.4, 0.3],
        "last": [-0.3, 0.0],
    }  # fmt: skip
    assert second["i"] == 1 and second["steps"] == 1 and second["breakers"] == "closed"
    assert (record.steps, record.late) == (4, 1)
    assert acted_brief(record.last or acted())["step"] == 4


def test_it_forgets_what_is_long_ago() -> None:
    record = Record()
    for step in range(SLOTS + 50):
        record.add(acted(step), step * SLOT_NS)
    assert len(record.slots) == SLOTS and record.slots.oldest == 50
    told, more = [], True
    while more:
        found, more = record.since(told[-1].index + 1 if told else 0)
        assert len(found) <= TOLD
        told += found
    assert told == list(record.slots) and record.since(SLOTS + 49) == (told[-1:], False)
    now = (SLOTS + 49) * SLOT_NS
    assert record.rate_hz(now) == pytest.approx(1 / SLOT, rel=0.03)
    assert record.rate_hz(now + round(RECENT * 1e9) + 1) == 0


def test_notes_never_crowd_out_a_trip() -> None:
    record = Record()
    notes = [event(Cause.NOTE, step=i) for i in range(1000)]
    record.take(1001, [event(), *notes])
    told = record.events(0, real_time=True)
    assert len(told) == NOTES + 1 and told[0]["cause"] == "rate" and told[0]["n"] == 0
    assert told[0]["value"] == "nan" and told[0]["at_ms"] == 5.0 and "config" not in told[0]
    assert [one["n"] for one in told] == sorted(one["n"] for one in told)
    assert record.events(0, real_time=False)[0]["at_ms"] is None
    record.take(1001 + 500, [event(step=i) for i in range(500)])
    assert len(record.events(1001, True)) == EVENTS
    record.forget_events()
    assert record.events(0, True) == [] and record.read == 0


def test_a_surprise_is_told_for_a_while() -> None:
    record = Record()
    record.add(acted(10), 0)
    record.take(1, [event(Cause.SURPRISE, field="gap", kind="frozen", step=10)])
    assert record.suspects(0.1) == {"gap": "frozen"}
    record.add(acted(10 + round(RECENT / 0.1) - 1), 1)
    assert record.suspects(0.1) == {"gap": "frozen"}
    record.add(acted(10 + round(RECENT / 0.1)), 2)
    assert record.suspects(0.1) == {}


def test_a_step_costs_little(seed: int) -> None:
    """6 us measured, in a full window; the bound is for a machine that does much else."""
    rng = random.Random(seed)
    record = Record()
    answers = [acted(i, act_ns=int(rng.lognormvariate(13, 0.5))) for i in range(1000)]
    for repeat in range(11):
        for answer in answers:
            record.add(answer, (repeat * 1000 + answer.step) * 2_000_000)
    took = []
    for answer in answers:
        began = time.perf_counter_ns()
        record.add(answer, (11_000 + answer.step) * 2_000_000)
        took.append(time.perf_counter_ns() - began)
    assert median(took) < 100_000
