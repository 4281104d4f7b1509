"""A robot's last steps, in bounded memory: slots of some steps each, durations, events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from wmrt.core.wire import Acted
from wmrt.safety import Cause, Event
from wmrt.service.desk import Desk
from wmrt.service.plain import plain
from wmrt.service.slots import Slot, Slots, short
from wmrt.service.window import Window

#: Seconds of a slot, and slots kept of each robot: a minute at least. So many of them go into one
#: frame: all would hold up the event loop for 12 ms whenever somebody opens a page.
SLOT, SLOTS, TOLD = 0.05, 1200, 50
#: Events of a robot's breakers that are kept; of these that only note a value, which come by the
#: dozen, and so many at most are looked at for one frame.
EVENTS, NOTES, FETCHED = 100, 40, 512
#: Seconds over which steps are counted for their rate, and for which a surprise is shown.
RECENT = 2.0


class Record:
    """One robot's steps."""

    def __init__(self) -> None:
        self.window = Window()
        self.slots = Slots(SLOTS, 0)
        self.steps = self.late = 0
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
        if len(answer.action) != slots.actuators:  # the first one, or another controller's
            self.slots = slots = Slots(SLOTS, len(answer.action), slots.begun)
        newest = slots.newest_ns()
        if newest is not None and now_ns - newest < SLOT * 1e9:
            slots.add(answer)
        else:
            slots.begin(answer, now_ns)

    def rate_hz(self, now_ns: int) -> float:
        """Steps a second, lately."""
        return self.slots.steps_since(now_ns - round(RECENT * 1e9)) / RECENT

    def since(self, index: int) -> tuple[list[Slot], bool]:
        """The first `TOLD` slots from number ``index`` on, and whether there are more."""
        start = max(index, self.slots.oldest)
        end = min(start + TOLD, self.slots.begun)
        return [self.slots.read(at) for at in range(start, end)], end < self.slots.begun

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
