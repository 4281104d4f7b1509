"""Slots of steps: held to plain lists of the steps themselves, and no objects that stay."""

from __future__ import annotations

import gc
import random
import sys
from typing import Any

import pytest

from tests.service.test_records import SLOT_NS, acted
from wmrt.core.wire import Acted
from wmrt.safety import State
from wmrt.service.records import SLOTS, Record
from wmrt.service.slots import SOURCES, STATES, Slots


def any_answer(rng: random.Random, step: int, actuators: int) -> Acted:
    return acted(
        step,
        action=tuple(rng.uniform(-1, 1) for _ in range(actuators)),
        act_ns=rng.randrange(10**9),
        late=rng.random() < 0.3,
        source=rng.choice(SOURCES),
        breakers=rng.choice(STATES),
        tripped=tuple(sorted(rng.sample(range(5), rng.randrange(3)))),
    )


def told(index: int, at_ns: int, steps: list[Acted]) -> dict[str, Any]:
    """What a slot of these steps has to tell."""
    columns = list(zip(*(step.action for step in steps), strict=True))
    return {
        "i": index, "at_ms": at_ns / 1e6, "steps": len(steps),
        "act_ms": max(step.act_ns for step in steps) / 1e6,
        "late": sum(step.late for step in steps),
        "source": max((step.source for step in steps), key=SOURCES.index),
        "breakers": max((step.breakers for step in steps), key=STATES.index),
        "tripped": sorted({level for step in steps for level in step.tripped}),
        "low": [round(min(column), 6) for column in columns],
        "high": [round(max(column), 6) for column in columns],
        "last": [round(value, 6) for value in steps[-1].action],
    }  # fmt: skip


@pytest.mark.parametrize("actuators", [1, 2, 7])
def test_a_slot_tells_what_its_steps_were(actuators: int, seed: int) -> None:
    rng, slots = random.Random(seed), Slots(8, actuators)
    begun: list[tuple[int, list[Acted]]] = []
    assert slots.newest_ns() is None and len(slots) == 0 and not list(slots)
    for step in range(100):
        answer = any_answer(rng, step, actuators)
        if begun and rng.random() < 0.6:
            slots.add(answer)
            begun[-1][1].append(answer)
        else:
            slots.begin(answer, 100 * step)
            begun.append((100 * step, [answer]))
        kept = list(enumerate(begun))[-8:]
        assert [slot.to_json() for slot in slots] == [told(i, at, own) for i, (at, own) in kept]
        assert (slots.begun, slots.oldest, len(slots)) == (len(begun), kept[0][0], len(kept))
        assert slots.newest_ns() == begun[-1][0]
        since = rng.randrange(100 * step + 1)
        assert slots.steps_since(since) == sum(len(own) for _, (at, own) in kept if at >= since)


@pytest.mark.parametrize(("names", "key"), [(SOURCES, "source"), (STATES, "breakers")])
def test_the_last_of_the_names_wins(names: tuple[str, ...], key: str, seed: int) -> None:
    order = list(names)
    random.Random(seed).shuffle(order)
    slots = Slots(2, 2)
    slots.begin(acted(0, **{key: order[0]}), 0)
    for step, name in enumerate(order[1:], 1):
        slots.add(acted(step, **{key: name}))
    assert [slot.to_json()[key] for slot in slots] == [names[-1]]


def test_the_names_are_all_there_are() -> None:
    assert set(STATES) == {state.value for state in State}


def test_another_number_of_actuators_begins_afresh() -> None:
    record = Record()
    record.add(acted(1), 0)
    record.add(acted(2, action=(0.5, 0.25, -1.0)), SLOT_NS)
    (only,) = record.slots
    assert (only.index, only.last) == (1, [0.5, 0.25, -1.0])


def test_no_step_leaves_an_object_behind() -> None:
    """What lives for a minute between others that live for a moment makes holes in the memory."""
    record = Record()
    for step in range(10):
        record.add(acted(step), step * SLOT_NS)
    gc.collect()
    before = sys.getallocatedblocks()
    for step in range(10, SLOTS):
        record.add(acted(step, act_ns=10**6 + step), step * SLOT_NS)
    gc.collect()
    assert sys.getallocatedblocks() - before < SLOTS / 4
