"""When robots' memories are written and read: every so often, and at once where it matters."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from wmrt.core.errors import CheckpointError, UsageError, WmrtError
from wmrt.core.wire import Acted
from wmrt.safety import State
from wmrt.service.audit import Audit
from wmrt.service.leases import Lease
from wmrt.service.logs import log
from wmrt.service.memories import Found, Memory, Standing
from wmrt.service.meter import Meter
from wmrt.service.places import Place
from wmrt.service.refusals import Refusal
from wmrt.service.snapshots import SnapshotStore
from wmrt.service.standings import Standings
from wmrt.service.telemetry import Telemetry

#: Seconds for which the end of a step is waited for before a snapshot, and between two looks.
PATIENCE, LOOK = 1.0, 0.01
#: Seconds within which a stop has to be on disk; 5 to 25 ms are usual.
DISK = 2.0


class Keeper:
    """Keeps memories in ``store``; keeps none if there is no store. In the event loop.

    Args:
        every: seconds between two looks, 0 for none but those that `look` calls for.
        lost: called when another process turns out to have taken a robot.
    """

    def __init__(
        self,
        store: SnapshotStore | None,
        every: float,
        lost: Callable[[Lease], object],
        audit: Audit,
        meter: Meter,
        telemetry: Telemetry,
    ) -> None:
        self.store, self._every, self._lost = store, every or None, lost
        self._audit, self._meter, self._telemetry = audit, meter, telemetry
        self.standings = None if store is None else Standings(store, lost, audit)
        self._latched: set[str] = set()
        self._now = asyncio.Event()

    async def read(self, robot: str) -> Found:
        """What is on disk of a robot that no process serves."""
        if self.store is None:
            return Found()

        def damaged(error: CheckpointError) -> None:
            self._meter.not_restored += 1
            self._audit.note("snapshot_damaged", robot=robot, reason=str(error))

        return await asyncio.to_thread(self.store.find, robot, damaged)

    def stands(self, lease: Lease | None) -> Callable[[Standing], object] | None:
        """For the desk of a robot that was taken under ``lease``."""
        standings = self.standings
        return None if standings is None else lambda standing: standings.put(standing, lease)

    def unwritten(self) -> dict[str, str]:
        """Robots of which the disk does not say where the breakers stand, and why."""
        return {} if self.standings is None else self.standings.waiting.copy()

    async def settle(self) -> None:
        """Wait until the disk says where breakers stand."""
        if self.standings is not None:
            await asyncio.to_thread(self.standings.settle)

    async def keep_standing(self, place: Place) -> None:
        """Wait until it is on disk where a robot's breakers stand now: nothing heals it then.

        Raises:
            Refusal: moved: another process has the robot. UsageError: the disk would not take it.
            TimeoutError: it has not answered within `DISK`.
        """
        if self.standings is not None:
            done = self.standings.written_by(place.desk.standing(), place.lease)
            await asyncio.wait_for(asyncio.wrap_future(done), DISK)

    async def knows(self, robot: str) -> bool:
        """Whether anything of a robot is on disk."""
        return self.store is not None and await asyncio.to_thread(self.store.knows, robot)

    async def stop(self, robot: str, latch: bool, lease: Lease | None) -> Standing:
        """Have a robot that no process serves come back latched, or (not ``latch``) disengaged:
        where its breakers stand now, on disk.

        Raises:
            UsageError: the disk would not take it. Refusal: moved: another process has the robot.
        """
        store, standings = self.store, self.standings
        assert store is not None and standings is not None  # there are robots on disk
        standing = await asyncio.to_thread(store.stopped, robot, latch)
        if lease is not None:
            await asyncio.to_thread(store.write_standing, standing, lease)
            return standing
        standings.put(standing, None)  # in its turn, and again where the disk would not take it
        await self.settle()
        if (why := self.unwritten().get(robot)) is not None:
            raise UsageError(f"where the breakers of robot {robot} stand is not on disk: {why}")
        return standing

    def close(self) -> None:
        """Nothing more is kept."""
        if self.standings is not None:
            self.standings.close()

    async def keep(self, place: Place) -> bool:
        """Write a robot's memory if it has moved on since; True if what is on disk is its last.

        What goes wrong, such as a disk that takes nothing, is told in the audit log, and the robot
        goes on.
        """
        desk, session = place.desk, place.session
        if self.store is None:
            return False
        async with place.keeping:
            mark = (session.epoch, desk.breakers.step, desk.breakers.state, desk.breakers.engaged)
            if place.kept == mark:
                return True
            try:
                with self._telemetry.span("snapshot", robot=session.robot):
                    memory = await _memory(place)
                    await asyncio.to_thread(self.store.write, memory, place.lease)
            except Exception as error:
                if not isinstance(error, WmrtError):  # such as a device that has failed
                    log.exception("a snapshot failed", robot=session.robot)
                self._audit.note("snapshot_failed", robot=session.robot, reason=str(error)[:300])
                if isinstance(error, Refusal) and place.lease is not None:
                    self._lost(place.lease)
                return False
            place.kept = mark
            return True

    def look(self, answer: Acted) -> None:
        """A latch is kept at once: a process that is killed must not heal it."""
        if answer.breakers != State.LATCHED.value:
            self._latched.discard(answer.robot)
        elif answer.robot not in self._latched:
            self._latched.add(answer.robot)
            self._now.set()

    def soon(self, place: Place) -> None:
        """Keep a robot as soon as its thread allows, whatever it had before."""
        place.kept = None
        self._now.set()

    async def run(self, places: dict[str, Place]) -> None:
        """Keep all of ``places`` when it is time, until cancelled."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._now.wait(), self._every)
            self._now.clear()
            self._latched &= places.keys()
            for place in list(places.values()):
                await self.keep(place)


async def _memory(place: Place) -> Memory:
    """See `Desk.remember`; a step that is late is waited for, but not in a robot's thread."""
    desk, end = place.desk, time.monotonic() + PATIENCE
    while desk.policy.running() and time.monotonic() < end:
        await asyncio.sleep(LOOK)
    return await asyncio.wrap_future(desk.call(desk.remember))
