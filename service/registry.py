"""Which robot has which seat, and whose it is. In the event loop.

A robot is never silently somebody else's, and never silently without its past: a session that is
not known here is refused, and only a client that asks for a new one starts afresh.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from wmrt.core.errors import SafetyError, WmrtError
from wmrt.core.wire import Observed
from wmrt.safety import State
from wmrt.service.audit import Audit
from wmrt.service.crew import Crew
from wmrt.service.desk import Desk, Memory, Reply
from wmrt.service.meter import Meter, RobotMeter
from wmrt.service.refusals import Refusal
from wmrt.service.sessions import Holder, Session, check_name, unknown
from wmrt.service.settings import ServeSettings
from wmrt.service.snapshots import SnapshotStore
from wmrt.service.telemetry import Telemetry


class Seen(NamedTuple):
    """An observation that was answered, and its age when its step began, ns; None if unknown."""

    observed: Observed
    age_ns: int | None


@dataclass(eq=False)
class Place:
    """A robot in its seat."""

    seat: int
    desk: Desk
    session: Session
    meter: RobotMeter
    kept: object = None  # what of it is on disk
    seen: Seen | None = None  # the last one
    stop_pressed: bool = False  # the emergency stop, by way of this service


@dataclass(frozen=True)
class Opened:
    """What a client gets that opens a session.

    Attributes:
        memory: ``kept`` (the robot goes on), ``restored`` (from a snapshot) or ``fresh``.
        resumed: the client had this session before.
        sequence: of the last observation that counts, -1 for none.
    """

    session: Session
    memory: str
    resumed: bool
    sequence: int


class Registry:
    """The robots of one process.

    Args:
        crew: seats and threads. reply: gets every desk's answers.
        meter: counts sessions, and gives each robot its own. telemetry: gets snapshots.
        options: of every robot's `Controller`, such as a recorder.

    Attributes:
        places: robots that have a seat.
    """

    def __init__(
        self,
        crew: Crew,
        settings: ServeSettings,
        audit: Audit,
        reply: Reply,
        meter: Meter,
        telemetry: Telemetry,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.places: dict[str, Place] = {}
        self.store = None if settings.snapshots is None else SnapshotStore(settings.snapshots)
        self._crew, self._settings, self._audit = crew, settings, audit
        self._reply, self._meter, self._telemetry = reply, meter, telemetry
        self._options = options
        self._free = list(range(len(crew.seats)))[::-1]
        self._opening = asyncio.Lock()

    def place(self, robot: str) -> Place:
        """A robot's place; `Refusal` unknown_session if it has none."""
        found = self.places.get(robot)
        if found is None:
            raise unknown(robot)
        return found

    async def open(
        self,
        robot: str,
        session: int | None,
        measured: Sequence[float] | None,
        holder: Holder | None,
    ) -> Opened:
        """Open a session, or go on with one (``session``).

        Args:
            measured: where the actuators are, normalised, for a session that starts afresh.
            holder: the connection that will hold it; None over HTTP.

        Raises:
            Refusal: by name.
        """
        check_name(robot)
        if robot not in self.places and not self._free and self._idlest() is None:
            raise self._full()  # without waiting for anybody
        async with self._opening:
            place = self.places.get(robot)
            if place is None:
                opened = await self._seat(robot, session, measured)
            else:
                opened = await self._again(place, session, measured)
            opened.session.hold(holder, time.monotonic())
        self._meter.opened[opened.memory] += 1
        self._audit.note(
            "opened", robot=robot, memory=opened.memory, resumed=opened.resumed,
            epoch=opened.session.epoch, session=opened.session.digest,
        )  # fmt: skip
        return opened

    def _full(self) -> Refusal:
        limit = len(self._crew.seats)
        return Refusal(
            "too_many_robots",
            f"this process serves {limit} robot{'s' * (limit > 1)}, and all places are taken",
        )

    async def _again(
        self, place: Place, session: int | None, measured: Sequence[float] | None
    ) -> Opened:
        """A client for a robot that has a place."""
        old = place.session
        if session is not None:
            old.require(session)
            _expel(old, "this session goes on over another connection")
            return Opened(old, "kept", True, old.sequence)
        held = old.held(time.monotonic(), self._settings.hold)
        if held and self._settings.on_second_client == "refuse":
            self._audit.note("refused", robot=old.robot, reason="held")
            raise Refusal("held", f"another client holds robot {old.robot}")
        new = Session(old.robot, time.monotonic(), old.epoch + 1)
        place.session, place.desk.epoch = new, new.epoch
        if held:
            self._audit.note("taken_over", robot=old.robot)
            _expel(old, f"another client has taken robot {old.robot} over")
            return Opened(new, "kept", False, -1)
        await self.in_thread(place, lambda: place.desk.reset(measured))
        return Opened(new, "fresh", False, -1)

    async def _seat(
        self, robot: str, session: int | None, measured: Sequence[float] | None
    ) -> Opened:
        """A client for a robot that has no place."""
        kept, damage = await self._recorded(robot)
        if session is not None and (kept is None or kept.session != session):
            raise unknown(robot)
        seat = await self._take_seat()
        desk = Desk(
            *(robot, self._crew.seats[seat], self._settings, self._crew.period),
            *(self._crew.workers[seat], self._reply, self._crew.timed),
            options=self._options,
        )
        new = Session(robot, time.monotonic(), 0 if kept is None else kept.epoch + 1)
        place = Place(seat, desk, new, self._meter.robot())
        try:
            if session is not None and kept is not None:
                await self.in_thread(place, lambda: desk.recall(kept))
                new.id, new.epoch, new.sequence = kept.session, kept.epoch, kept.sequence
                opened = Opened(new, "restored", True, new.sequence)
            else:
                desk.epoch = new.epoch
                await self.in_thread(place, lambda: _begin(desk, measured, kept, damage))
                opened = Opened(new, "fresh", False, -1)
        except BaseException as error:
            self._free.append(seat)
            if isinstance(error, Refusal | asyncio.CancelledError):
                raise
            self._meter.not_restored += 1
            self._audit.note("not_restored", robot=robot, reason=str(error)[:300])
            raise unknown(robot) from None
        self.places[robot] = place
        return opened

    async def _recorded(self, robot: str) -> tuple[Memory | None, bool]:
        """The robot's snapshot, and whether there is one that cannot be read."""
        if self.store is None:
            return None, False
        try:
            return await asyncio.to_thread(self.store.read, robot), False
        except WmrtError as error:
            self._meter.not_restored += 1
            self._audit.note("snapshot_damaged", robot=robot, reason=str(error))
            return None, True

    def _idlest(self) -> Place | None:
        """The robot whose place may be given away: that without a client for longest."""
        now, settings = time.monotonic(), self._settings
        gone = [
            place
            for place in self.places.values()
            if not place.session.held(now, settings.hold)
            and now - place.session.seen >= settings.idle
        ]
        return min(gone, key=lambda place: place.session.seen, default=None)

    async def _take_seat(self) -> int:
        """A free seat, or that of a robot that has been without a client for long enough."""
        if not self._free:
            place = self._idlest()
            if place is None:
                raise self._full()
            await self.keep(place)
            if self._idlest() is not place:  # it came back meanwhile
                raise self._full()
            del self.places[place.session.robot]
            await self.in_thread(place, place.desk.close)
            self._audit.note("gave_place_away", robot=place.session.robot)
            self._free.append(place.seat)
        return self._free.pop()

    async def keep(self, place: Place) -> bool:
        """Write a robot's memory if it has moved on since; True if what is on disk is its last.

        A disk that takes nothing is told in the audit log, and the robot goes on.
        """
        desk, session = place.desk, place.session
        if self.store is None:
            return False
        mark = (session.epoch, desk.breakers.step, desk.breakers.state, desk.breakers.engaged)
        if place.kept == mark:
            return True
        try:
            with self._telemetry.span("snapshot", robot=session.robot):
                memory = await self.in_thread(place, lambda: desk.remember(session.id))
                await asyncio.to_thread(self.store.write, memory)
        except WmrtError as error:
            self._audit.note("snapshot_failed", robot=session.robot, reason=str(error))
            return False
        place.kept = mark
        return True

    async def in_thread(self, place: Place, do: Callable[[], Any]) -> Any:
        """``do()`` in the robot's thread, between steps; what wmrt refuses is a `Refusal`."""
        try:
            return await asyncio.wrap_future(place.desk.call(do))
        except SafetyError as error:
            raise Refusal("refused", str(error)) from None


def _expel(session: Session, why: str) -> None:
    if session.holder is not None:
        session.holder.expel(Refusal("taken_over", why))
        session.holder = None


def _begin(
    desk: Desk, measured: Sequence[float] | None, kept: Memory | None, damaged: bool
) -> None:
    """Start afresh, but for the breakers: neither a restart nor a new session heals them."""
    desk.reset(measured)
    if damaged:  # what it said of the breakers is not known, so somebody has to look
        desk.caution(State.LATCHED.value, False, None)
    elif kept is not None:
        desk.caution(kept.breakers, kept.engaged, measured)
