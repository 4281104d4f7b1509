"""What the live page shows: a bounded record of every robot, kept in the event loop.

`Live.add` gets every answer, and costs some microseconds however many look. Whoever looks gets
frames (`Live.frame`): what is new since the last one, in slots of `SLOT` seconds, so that a frame's
size depends neither on the control rate nor on how long ago the last one was.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from wmrt.core.errors import UsageError
from wmrt.core.wire import NAME_BYTES, VERSION, Acted
from wmrt.safety import Event
from wmrt.service import operations
from wmrt.service.desk import Desk
from wmrt.service.host import Host
from wmrt.service.messages import dumps, schema_json
from wmrt.service.places import Place
from wmrt.service.plain import plain
from wmrt.service.readings import Readings
from wmrt.service.records import FETCHED, SLOT, SLOTS, Record, acted_brief
from wmrt.service.refusals import Refusal
from wmrt.service.slots import SOURCES, STATES

#: Refusals of the process that are kept.
REFUSALS = 100


@dataclass
class Cursor:
    """What one viewer has: slots, events and refusals before these, and how many steps it knows."""

    robot: str | None = None
    slot: int = 0
    event: int = 0
    refusal: int = 0
    steps: int = -1
    desk: Desk | None = None


class Live:
    """Keeps records and makes frames of them. In the event loop."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._records: dict[str, Record] = {}
        self._readings = Readings(host.schema, host.settings)
        self._refusals: deque[tuple[int, dict[str, Any]]] = deque(maxlen=REFUSALS)
        self._refused = 0
        self._fixed = dumps(plain(_fixed(host)))  # takes 5 ms, most of it for the schema
        host.acted.append(self.add)
        host.refused.append(self.refuse)

    def add(self, answer: Acted) -> None:
        """Keep an answer."""
        record = self._records.get(answer.robot)
        if record is None:
            self._forget()
            record = self._records[answer.robot] = Record()
        record.add(answer, time.monotonic_ns())

    def refuse(self, refusal: Refusal) -> None:
        """Keep a refusal."""
        data = {
            "at_ms": time.monotonic_ns() / 1e6,
            "robot": None if refusal.robot is None else refusal.robot[:NAME_BYTES],
            "name": refusal.name,
            "message": str(refusal)[:300],
            "sequence": refusal.sequence,
        }
        self._refusals.append((self._refused, data))
        self._refused += 1

    def _forget(self) -> None:
        """Robots that are gone are shown until others come."""
        for name in [name for name in self._records if name not in self._host.registry.places]:
            del self._records[name]

    def hello(self) -> str:
        """JSON of what does not change while the service runs; and how it is."""
        return f'{self._fixed[:-1]},"info":{dumps(plain(operations.info(self._host)))}}}'

    def frame(self, robot: str | None, cursor: Cursor) -> dict[str, Any]:
        """What is new for a viewer of ``robot``; of the first one there is if it is None.

        Args:
            cursor: moves on.
        """
        host, now_ns = self._host, time.monotonic_ns()
        places = host.registry.places
        if robot is None:
            robot = cursor.robot or next(iter(places), None)
        told: dict[str, Any] = {
            "kind": "frame",
            "version": VERSION,
            "at_ms": now_ns / 1e6,
            "reasons": host.reasons(),
            "warnings": host.warnings(),
            "robots": {name: self._brief(name, place, now_ns) for name, place in places.items()},
            "robot": robot,
            "here": robot in places,
            "refusals": [item for serial, item in self._refusals if serial >= cursor.refusal],
        }
        cursor.refusal = self._refused
        if robot is not None:
            cursor.robot = robot
            place = places.get(robot)
            if place is not None:
                self._read_events(robot, place)
            record = self._records.get(robot)
            if record is not None:
                told |= self._news(record, place, cursor, now_ns)
        return told

    def _brief(self, name: str, place: Place, now_ns: int) -> dict[str, Any]:
        record = self._records.get(name)
        at_ns = 0 if record is None else record.at_ns
        return {**operations.robot(place), "age_ms": (now_ns - at_ns) / 1e6 if at_ns else None}

    def _news(
        self, record: Record, place: Place | None, cursor: Cursor, now_ns: int
    ) -> dict[str, Any]:
        if record.read_from is not cursor.desk:  # another controller's events: from the first on
            cursor.desk, cursor.event = record.read_from, 0
        told: dict[str, Any] = {
            "rate_hz": record.rate_hz(now_ns),
            "events": record.events(cursor.event, self._host.settings.clock == "system"),
            "events_total": record.read,
        }
        cursor.event = record.read
        if cursor.steps == record.steps or record.last is None:
            return told
        slots, more = record.since(cursor.slot)
        told |= {"slots": [slot.to_json() for slot in slots], "more": more}
        if more:
            cursor.slot = slots[-1].index + 1
            return told
        # The last one may still grow, so it is told again.
        cursor.slot, cursor.steps = record.slots.begun - 1, record.steps
        suspects = record.suspects(self._host.crew.period)
        seen = None if place is None else place.seen
        return told | {
            "latency": {**record.window.summary(), "histogram": record.window.histogram()},
            "last": acted_brief(record.last),
            "steps": record.steps,
            "late": record.late,
            "state": None if seen is None else self._readings.read(seen, suspects),
        }

    def _read_events(self, robot: str, place: Place) -> None:
        """Fetch new events, in the thread that writes them; a later frame has them."""
        record = self._records.get(robot)
        ring = place.desk.breakers.events
        if record is None:
            if not ring.total:
                return
            self._forget()
            record = self._records[robot] = Record()
        if record.read_from is not place.desk:
            record.read_from = place.desk
            record.forget_events()
        if ring.total != record.read and record.reading is None:
            record.reading = asyncio.create_task(self._fetch(record, place.desk))

    async def _fetch(self, record: Record, desk: Desk) -> None:
        ring = desk.breakers.events

        def read() -> tuple[int, tuple[Event, ...]]:
            return ring.total, ring.latest(min(ring.total - record.read, FETCHED))

        try:
            try:
                total, events = await asyncio.wrap_future(desk.call(read))
            except UsageError:  # it is stopping
                return
            if record.read_from is desk:
                record.take(total, events)
        finally:
            record.reading = None


def _fixed(host: Host) -> dict[str, Any]:
    return {
        "kind": "hello",
        "version": VERSION,
        **schema_json(host),
        "columns": [column.name for column in host.schema.columns],
        "sources": SOURCES,
        "states": STATES,
        "keeps_s": SLOT * SLOTS,
        "route_by": host.settings.route_by,
        "operator_token": host.settings.operator_token is not None,
    }
