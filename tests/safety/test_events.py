"""The record: what an event holds, and that the ring is bounded."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.safety.support import Rig, limits
from wmrt.safety import Breakers, Event, EventRing, Finding, Proposal, describe


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __bool__ = __len__ = __eq__ = __repr__  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (7, 7),
        (-(2**63), -(2**63)),
        (2**63 - 1, 2**63 - 1),
        (2**63, "integer of 64 bits"),
        (-(2**63) - 1, "integer of 64 bits"),
        (1 << 20000, "integer of 20001 bits"),
        ("text", "text"),
        ("x" * 1000, "x" * 80),
        ([1, 2], "<list>"),
        (Rude(), "<Rude>"),
    ],
    ids=lambda _: "",  # a value here may be unfit even to be printed
)
def test_describe(value: Any, shown: Any) -> None:
    assert describe(value) == shown
    assert type(describe(value)) is type(shown)


def test_an_event_as_json() -> None:
    rig = Rig()
    rig.step((0.1, math.nan))
    (event,) = rig.breakers.events.drain()
    data = json.loads(json.dumps(event.to_json()))
    assert math.isnan(data.pop("value")) and math.isnan(data.pop("action_in")[1])
    assert data == {
        "t_ns": 100_000_000, "robot": "robot", "step": 1, "level": "range", "cause": "range",
        "field": "acceleration", "kind": "nonfinite", "limit": None, "action_out": [0.0, 0.0],
        "before": "closed", "after": "closed", "config": rig.breakers.limits.hash,
    }  # fmt: skip


def test_the_ring_keeps_the_newest_and_counts_all() -> None:
    breakers = Breakers(limits(), robot="r2", events=8)
    for n in range(50):
        breakers.guard(n, Proposal(None), [Finding(str(n), "bad")])
    assert (len(breakers.events), breakers.events.total) == (8, 50)
    assert [e.field for e in breakers.events.snapshot()] == [str(n) for n in range(42, 50)]
    taken = breakers.events.drain()
    assert [e.field for e in taken] == [str(n) for n in range(42, 50)]
    assert (len(breakers.events), breakers.events.total) == (0, 50)
    assert {e.robot for e in taken} == {"r2"}


def test_the_latest_events_in_order() -> None:
    ring = EventRing(3)
    assert ring.latest(2) == ()
    breakers = Breakers(limits(), events=3)
    for _ in range(5):
        breakers.disengage()
    for event in breakers.events.snapshot():
        ring.append(event._replace(step=ring.total))
    assert [event.step for event in ring.latest(2)] == [1, 2]
    assert [event.step for event in ring.latest(9)] == [0, 1, 2]
    assert ring.latest(0) == () and len(ring) == 3


def test_draining_an_empty_ring() -> None:
    assert EventRing(4).drain() == []


def test_events_of_a_step_name_the_action_that_left_in_it() -> None:
    rig = Rig()
    sent = {}
    for n in range(40):
        decision = rig.step((0.4 * (-1) ** n, 1.05))
        sent[n + 1] = decision.action
    events: list[Event] = rig.breakers.events.snapshot()
    assert events and all(event.action_out == sent[event.step] for event in events)


def test_the_latest_events_stay_and_come_oldest_first() -> None:
    breakers = Breakers(limits(), events=8)
    for n in range(20):
        breakers.guard(n, Proposal(None), [Finding(str(n), "bad")])
    assert [e.field for e in breakers.events.latest(3)] == ["17", "18", "19"]
    assert [e.field for e in breakers.events.latest(99)] == [str(n) for n in range(12, 20)]
    assert breakers.events.latest(0) == ()
    assert len(breakers.events) == 8
