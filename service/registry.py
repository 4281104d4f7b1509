"""Which robot has which seat, and whose it is. In the event loop.

A robot is never silently somebody else's, and never silently without its past: a session that is
not known here is refused, and only a client that asks for a new one starts afresh.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from wmrt.service.audit import Audit
from wmrt.service.crew import Crew
from wmrt.service.desk import Desk, Reply
from wmrt.service.folder_lock import FolderLock
from wmrt.service.handover import Handover
from wmrt.service.keeping import Keeper
from wmrt.service.leases import Lease, Leases, moved
from wmrt.service.memories import Trouble, remembered
from wmrt.service.meter import Meter
from wmrt.service.places import Opened, Place, begin, expel, finished, full, recall, trouble
from wmrt.service.refusals import Refusal
from wmrt.service.sessions import Holder, Session, check_name, unknown
from wmrt.service.settings import ServeSettings
from wmrt.service.snapshots import SnapshotStore
from wmrt.service.telemetry import Telemetry

#: Robots whose breakers are remembered without a folder of snapshots; others keep their places.
PARTED = 1024


class Registry:
    """The robots of one process.

    Args:
        crew: seats and threads. reply: gets every desk's answers.
        meter: counts sessions, and gives each robot its own. telemetry: gets snapshots.
        options: of every robot's `Controller`, such as a recorder.

    Attributes:
        places: robots that have a seat.
        handover: to and from other processes; None where there are none.
        parted: of robots that gave their place away, what no disk says.
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
        self.store: SnapshotStore | None = None
        self.handover: Handover | None = None
        self._folder: FolderLock | None = None
        if settings.snapshots is not None:
            self._folder = FolderLock(settings.snapshots, settings.shared)
            leases = Leases(settings.snapshots, settings.label) if settings.shared else None
            self.store = SnapshotStore(settings.snapshots, leases)
            self.handover = None if leases is None else Handover(leases, settings, audit)
        every, lost = settings.snapshot_every, self._lost
        self.keeper = Keeper(self.store, every, lost, audit, meter, telemetry)
        self._crew, self._settings, self._audit = crew, settings, audit
        self._reply, self._meter, self._options = reply, meter, options
        self._free = list(range(len(crew.seats)))[::-1]
        self.parted: dict[str, Trouble] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._seating = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """This process serves no robot any more."""
        self.keeper.close()
        for one in (self.handover, self._folder):
            if one is not None:
                one.close()

    def place(self, robot: str) -> Place:
        """A robot's place; `Refusal` unknown_session if it has none, moved if it is leaving."""
        found = self.places.get(robot)
        if found is None:
            raise unknown(robot)
        if found.leaving:
            raise moved(robot)
        return found

    def lock(self, robot: str) -> asyncio.Lock:
        """Held while it is found out whether a robot is here."""
        return self._locks.setdefault(robot, asyncio.Lock())

    async def open(
        self,
        robot: str,
        session: int | None,
        measured: Sequence[float] | None,
        holder: Holder | None,
        answered: int | None = None,
    ) -> Opened:
        """Open a session, or go on with one (``session``).

        Args:
            measured: where the actuators are, normalised, for a session that starts afresh.
            holder: the connection that will hold it; None over HTTP.
            answered: sequence of the last answer that the client has.

        Raises:
            Refusal: by name.
        """
        check_name(robot)
        refusal = self.no_room(robot)
        if refusal is not None:
            raise refusal  # without waiting for anybody
        self._loop = asyncio.get_running_loop()
        async with self.lock(robot):
            place = self.places.get(robot)
            if place is None:
                opened = await self._seat(robot, session, measured)
            elif place.leaving:
                raise moved(robot)  # its session goes with it as it is
            else:
                opened = await self._again(place, session, measured)
            place = self.places.get(robot)
            if self.handover is not None and place is not None and not opened.resumed:
                await self.keep(place)  # a session that was opened is one that can be restored
            if place is None or place.leaving:  # it was wanted elsewhere meanwhile
                raise moved(robot)
            opened.session.hold(holder, time.monotonic())
        if opened.memory == "restored" and answered is not None:
            opened = replace(opened, steps_lost=max(0, answered - opened.sequence))
        self._meter.opened[opened.memory] += 1
        self._audit.note(
            "opened", robot=robot, memory=opened.memory, resumed=opened.resumed,
            epoch=opened.session.epoch, session=opened.session.digest, steps_lost=opened.steps_lost,
        )  # fmt: skip
        return opened

    def no_room(self, robot: str) -> Refusal | None:
        """Why a robot that has no place gets none, if it does not."""
        if robot in self.places or self._free or self._idlest() is not None:
            return None
        return full(len(self._crew.seats), self._settings.idle)

    async def _again(
        self, place: Place, session: int | None, measured: Sequence[float] | None
    ) -> Opened:
        """A client for a robot that has a place."""
        old = place.session
        if session is not None:
            old.require(session)
            expel(old, Refusal("taken_over", "this session goes on over another connection"))
            return Opened(old, "kept", True, old.sequence)
        held = old.held(time.monotonic(), self._settings.hold)
        if held and self._settings.on_second_client == "refuse":
            self._audit.note("refused", robot=old.robot, reason="held")
            until = f"as it closes, or {self._settings.hold:g} s after its connection broke"
            raise Refusal("held", f"another client holds robot {old.robot}; it lets go {until}")
        place.desk.require_measured(measured)  # whose session it was can still go on with it
        new = Session(old.robot, time.monotonic(), old.epoch + 1)
        with place.entering:
            place.session, place.desk.session, place.desk.epoch = new, new.id, new.epoch
        if held:
            self._audit.note("taken_over", robot=old.robot)
            said = f"another client has taken robot {old.robot} over"
            expel(old, Refusal("taken_over", said))
            return Opened(new, "kept", False, -1)
        await finished(place.desk.call(lambda: place.desk.reset(measured, heal=False)))
        return Opened(new, "fresh", False, -1)

    async def _seat(
        self, robot: str, session: int | None, measured: Sequence[float] | None
    ) -> Opened:
        """A client for a robot that has no place."""
        if self.handover is None:
            return await self._seat_ours(robot, session, measured, None)
        lease = await self.handover.acquire(robot, session)
        try:
            return await self._seat_ours(robot, session, measured, lease)
        except BaseException:
            await self.handover.release(lease)
            raise

    async def _seat_ours(
        self, robot: str, session: int | None, measured: Sequence[float] | None, lease: Lease | None
    ) -> Opened:
        """The same, once no other process has it."""
        found = remembered(await self.keeper.read(robot), self.parted.get(robot))
        kept = found.memory
        if session is not None and (kept is None or kept.session != session):
            raise unknown(robot)
        async with self._seating:
            seat = await self._take_seat()
        reply = self._reply
        if self.handover is not None and lease is not None:
            reply = self.handover.guarded(lease, reply, partial(self._lost, lease))
        try:
            desk = Desk(
                *(robot, self._crew.seats[seat], self._settings, self._crew.period),
                *(self._crew.workers[seat], reply, self._crew.timed, self._crew.owned),
                options=self._options, stands=self.keeper.stands(lease),
            )  # fmt: skip
            new = Session(robot, time.monotonic(), found.epoch + 1)
            place = Place(seat, desk, new, self._meter.robot(), lease)
            if session is not None and kept is not None:
                await finished(desk.call(lambda: recall(desk, kept)))
                new.id, new.epoch, new.sequence = kept.session, kept.epoch, kept.sequence
                opened = Opened(new, "restored", True, new.sequence)
            else:
                await finished(desk.call(lambda: begin(desk, new, measured, found.trouble)))
                opened = Opened(new, "fresh", False, -1)
        except BaseException as error:
            self._free.append(seat)
            if isinstance(error, Refusal | asyncio.CancelledError):
                raise
            self._meter.not_restored += 1
            self._audit.note("not_restored", robot=robot, reason=str(error)[:300])
            raise unknown(robot) from None
        self.places[robot] = place
        self.parted.pop(robot, None)
        return opened

    def _idlest(self) -> Place | None:
        """The robot whose place may be given away: that without a client for longest."""
        now, settings = time.monotonic(), self._settings
        gone = [
            place
            for place in self.places.values()
            if place.session.holder is None  # `held`, and so most are: 1 us less for 16
            and not place.session.held(now, settings.hold)
            and now - place.session.seen >= settings.idle
            and not place.leaving
            and (len(self.parted) < PARTED or self._on_disk(place) or not trouble(place.desk))
        ]
        return min(gone, key=lambda place: place.session.seen, default=None)

    def _on_disk(self, place: Place) -> bool:
        """Whether the disk says where a robot's breakers stand."""
        return self.store is not None and place.session.robot not in self.keeper.unwritten()

    async def _take_seat(self) -> int:
        """A free seat, or that of a robot that has been without a client for long enough."""
        if not self._free:
            place = self._idlest()
            if place is None:
                raise full(len(self._crew.seats), self._settings.idle)
            await self.keep(place)
            if self._idlest() is not place:  # it came back meanwhile
                raise full(len(self._crew.seats), self._settings.idle)
            await self.leave(place)
            self._audit.note("gave_place_away", robot=place.session.robot)
        return self._free.pop()

    async def keep(self, place: Place) -> bool:
        """See `Keeper.keep`."""
        return await self.keeper.keep(place)

    async def put_away(self, place: Place, why: Refusal) -> None:
        """Take nothing more in for a robot, keep its memory, and tell its client."""
        with place.entering:
            place.leaving = True
        await self.keep(place)
        await self.keeper.settle()
        if self.handover is not None and place.lease is not None:
            await self.handover.release(place.lease)
        expel(place.session, why)
        await finished(place.desk.call(place.desk.close))

    async def leave(self, place: Place) -> None:
        """The same, and give its seat free."""
        robot = place.session.robot
        found = trouble(place.desk)
        await self.put_away(place, moved(robot))
        if found is not None and not self._on_disk(place):
            self.parted[robot] = found
        if self.places.get(robot) is place:
            del self.places[robot]
            self._free.append(place.seat)

    def _lost(self, lease: Lease) -> None:
        """Another process has taken a robot; its memory here is worth nothing. Any thread."""
        self._loop.call_soon_threadsafe(self._abandon, lease)

    def _abandon(self, lease: Lease) -> None:
        place = self.places.get(lease.robot)
        if place is None or place.lease != lease or place.leaving:
            return
        with place.entering:
            place.leaving = True
        self._audit.note("lost_robot", robot=lease.robot, token=lease.token)
        task = self._loop.create_task(self.leave(place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
