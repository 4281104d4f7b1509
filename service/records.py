"""A robot's last steps, in bounded memory: slots of some steps each, durations, events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from wmrt.core.wire import Acted
from wmrt.safety import Cause, Event
from wmrt.service.desk import Desk
from wmrt.service.plain import plain
from wmrt.service.window import Window

#: Seconds of a slot, and slots kept of each robot: a minute at least. So many of them go into one
#: frame: all would hold up the event loop for 12 ms whenever somebody opens a page.
SLOT, SLOTS, TOLD = 0.05, 1200, 50
#: Events of a robot's breakers that are kept; of these that only note a value, which come by the
#: dozen, and so many at most are looked at for one frame.
EVENTS, NOTES, FETCHED = 100, 40, 512
#: Seconds over which steps are counted for their rate, and for which a surprise is shown.
RECENT = 2.0
#: From what is best to what most deserves a look; of a slot, the last of these is shown.
SOURCES = ("policy", "clamped", "planned", "consensus", "blocked", "fallback")
STATES = ("closed", "degraded", "half_open", "open", "latched")
_SOURCE = {name: rank for rank, name in enumerate(SOURCES)}
_STATE = {name: rank for rank, name in enumerate(STATES)}


@dataclass(slots=True)
class Slot:
    """Some steps that came soon after each other.

    Attributes:
        at_ns: of the first one's answer, monotonic. act_ns: of the longest step.
        source, breakers: the most remarkable of them. tripped: levels, as bits.
        low, high, last: of each actuator, normalised.
    """

    index: int
    at_ns: int
    act_ns: int
    late: int
    source: str
    breakers: str
    tripped: int
    low: list[float]
    high: list[float]
    last: tuple[float, ...]
    steps: int = 1

    def add(self, answer: Acted) -> None:
        self.steps += 1
        self.late += answer.late
        if answer.act_ns > self.act_ns:
            self.act_ns = answer.act_ns
        if answer.source != self.source and _beyond(_SOURCE, answer.source, self.source):
            self.source = answer.source
        if answer.breakers != self.breakers and _beyond(_STATE, answer.breakers, self.breakers):
            self.breakers = answer.breakers
        self.tripped |= _bits(answer.tripped)
        self.last = answer.action
        for i, value in enumerate(answer.action):
            if value < self.low[i]:
                self.low[i] = value
            elif value > self.high[i]:
                self.high[i] = value

    def to_json(self) -> dict[str, Any]:
        return {
            "i": self.index,
            "at_ms": self.at_ns / 1e6,
            "steps": self.steps,
            "act_ms": self.act_ns / 1e6,
            "late": self.late,
            "source": self.source,
            "breakers": self.breakers,
            "tripped": [level for level in range(8) if self.tripped >> level & 1],
            "low": short(self.low),
            "high": short(self.high),
            "last": short(self.last),
        }


class Record:
    """One robot's steps."""

    def __init__(self) -> None:
        self.window = Window()
        self.slots: deque[Slot] = deque(maxlen=SLOTS)
        self.steps = self.late = self.next_slot = 0
        self.last: Acted | None = None
        self.at_ns = 0
        self._events: deque[tuple[int, Event]] = deque(maxlen=EVENTS)
        self._notes: deque[tuple[int, Event]] = deque(maxlen=NOTES)
        self.surprises: dict[str, tuple[str, int]] = {}
        self.read_from: Desk | None = None  # whose events these are
        self.read = 0  # so many of them
        self.reading: asyncio.Task[None] | None = None

    def add(self, answer: Acted, now_ns: int) -> None:
        self.window.add(answer.act_ns * 1e-6)
        self.steps += 1
        self.late += answer.late
        self.last, self.at_ns = answer, now_ns
        slots = self.slots
        if slots and now_ns - slots[-1].at_ns < SLOT * 1e9:
            slots[-1].add(answer)
            return
        action = answer.action
        slots.append(
            Slot(
                self.next_slot, now_ns, answer.act_ns, int(answer.late), answer.source,
                answer.breakers, _bits(answer.tripped), list(action), list(action), action,
            )
        )  # fmt: skip
        self.next_slot += 1

    def rate_hz(self, now_ns: int) -> float:
        """Steps a second, lately."""
        count = 0
        for slot in reversed(self.slots):
            if now_ns - slot.at_ns > RECENT * 1e9:
                break
            count += slot.steps
        return count / RECENT

    def since(self, index: int) -> tuple[list[Slot], bool]:
        """The first `TOLD` slots from number ``index`` on, and whether there are more."""
        start = max(0, index - self.slots[0].index) if self.slots else 0
        found = list(islice(self.slots, start, start + TOLD))
        return found, start + len(found) < len(self.slots)

    def take(self, total: int, events: Sequence[Event]) -> None:
        """Keep events, the last ones of ``total``."""
        for serial, event in enumerate(events, total - len(events)):
            (self._notes if event.cause is Cause.NOTE else self._events).append((serial, event))
            if event.cause is Cause.SURPRISE:
                self.surprises[event.field] = (event.kind, event.step)
        self.read = total

    def forget_events(self) -> None:
        """They were another controller's."""
        self._events.clear()
        self._notes.clear()
        self.surprises.clear()
        self.read = 0

    def events(self, since: int, real_time: bool) -> list[dict[str, Any]]:
        """Kept ones from number ``since`` on, oldest first, as plain data; ``real_time``: their
        clock is this machine's."""
        new = [one for ring in (self._notes, self._events) for one in ring if one[0] >= since]
        return [_event(serial, event, real_time) for serial, event in sorted(new)]

    def suspects(self, period: float) -> dict[str, str]:
        """Fields that the prediction monitor found wrong lately, and how."""
        step = 0 if self.last is None else self.last.step
        since = step - max(1, round(RECENT / period))
        self.surprises = {f: found for f, found in self.surprises.items() if found[1] > since}
        return {name: kind for name, (kind, _) in self.surprises.items()}


def _event(serial: int, event: Event, real_time: bool) -> dict[str, Any]:
    data: dict[str, Any] = plain(event.to_json())
    for key in ("robot", "config", "t_ns"):
        del data[key]
    at_ms = event.t_ns / 1e6 if real_time and event.t_ns else None
    return {"n": serial, "at_ms": at_ms, **data}


def acted_brief(answer: Acted) -> dict[str, Any]:
    """An answer as the live page has it."""
    policy = answer.policy_ns
    return {
        "step": answer.step,
        "epoch": answer.epoch,
        "sequence": answer.sequence,
        "action": short(answer.action),
        "source": answer.source,
        "breakers": answer.breakers,
        "tripped": answer.tripped,
        "late": answer.late,
        "queue_ms": answer.queue_ns / 1e6,
        "policy_ms": None if policy is None else policy / 1e6,
        "act_ms": answer.act_ns / 1e6,
    }


def _beyond(ranks: dict[str, int], name: str, other: str) -> bool:
    return ranks.get(name, len(ranks)) > ranks.get(other, len(ranks))


def _bits(levels: tuple[int, ...]) -> int:
    bits = 0
    for level in levels:
        bits |= 1 << level
    return bits


def short(values: tuple[float, ...] | list[float]) -> list[float]:
    """More digits than a float32 holds would only be sent for nothing."""
    return [round(value, 6) for value in values]
