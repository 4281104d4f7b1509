"""Robots that change hands between the processes that share a folder of snapshots.

A process that needs a robot asks its owner, which writes a snapshot and lets go. An owner that is
dead is not asked, and one that does not answer within `PATIENCE` is not waited for any longer: it
loses the robot, and what it did since its last snapshot, and finds out when it next answers; which
it may do for as long as its last look at the robot's record counts (`holding`), so that the robot
makes no step elsewhere before that. Nor where a dead owner's lock was a file server's to keep: that
also takes the lock of a process that it has not heard of for a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from wmrt.core.errors import CheckpointError, WmrtError
from wmrt.core.wire import Acted
from wmrt.service.audit import Audit
from wmrt.service.desk import Reply
from wmrt.service.file_systems import is_local
from wmrt.service.holding import OVER, Holds
from wmrt.service.jobs import Job
from wmrt.service.leases import Claim, Lease, Leases, Owned, moved
from wmrt.service.orders import Orders
from wmrt.service.places import Place
from wmrt.service.refusals import Refusal
from wmrt.service.sessions import Session, unknown
from wmrt.service.settings import ServeSettings

if TYPE_CHECKING:
    from wmrt.service.registry import Registry

#: Seconds that an owner has to let a robot go.
PATIENCE = 2.0
#: Seconds between two looks for claims, and for what became of one.
POLL = 0.02
#: Seconds until the next look after one that failed.
AGAIN = 1.0
_log = logging.getLogger("wmrt.service")


class Handover:
    """Takes robots over and gives them away. In the event loop.

    Args:
        leases: this process's.

    Attributes:
        holds: of its robots. orders: from operators who have come to another process.
    """

    def __init__(self, leases: Leases, settings: ServeSettings, audit: Audit) -> None:
        self.leases, self._settings, self._audit = leases, settings, audit
        self.holds = Holds(leases, self._unreadable)
        self.orders = Orders(leases)
        self._local = is_local(leases.folder)
        # Of its own: it must not wait behind snapshots that are written.
        self._eye = ThreadPoolExecutor(1, "wmrt-leases")

    def close(self) -> None:
        """This process serves no robot any more."""
        self.leases.close()
        self._eye.shutdown(wait=False)

    def _unreadable(self, robot: str, reason: str) -> None:
        self._audit.note("lease_unreadable", robot=robot, reason=reason[:300])

    async def acquire(self, robot: str, session: int | None) -> Lease:
        """Make a robot this process's.

        Args:
            session: the one that its client goes on with; None for a new one.

        Raises:
            Refusal: its owner says no, by name; not_ready: the folder cannot be used.
        """
        try:
            return await self._acquire(robot, session)
        except (WmrtError, OSError) as error:
            if isinstance(error, Refusal):
                raise
            self._audit.note("lease_failed", robot=robot, reason=str(error)[:300])
            said = "the folder of snapshots cannot be used now"
            if isinstance(error, CheckpointError):  # which does not pass by itself
                _log.error("robot %s is served by no process: %s", robot, error)
                said = f"whose robot {robot} is cannot be read; the service's log says what to do"
            raise Refusal("not_ready", said) from None

    async def _acquire(self, robot: str, session: int | None) -> Lease:
        leases, end = self.leases, time.monotonic() + PATIENCE
        asked: str | None = None  # the owner that knows
        try:
            while True:
                found = await asyncio.to_thread(leases.read, robot)
                free = await self._free(found)
                # Not by the time alone: this process itself may have been stopped for as long.
                late = found is not None and asked == found.owner and time.monotonic() > end
                if free or late:
                    lease = await asyncio.to_thread(leases.take, robot, found)
                    if lease is None:
                        continue  # somebody else was quicker
                    by_force = not free and found is not None
                    self._audit.note("took", robot=robot, token=lease.token, by_force=by_force)
                    await self._settle(found)
                    return lease
                if found is not None and asked != found.owner:
                    await asyncio.to_thread(leases.claim, robot, session)
                    asked, end = found.owner, time.monotonic() + PATIENCE
                await asyncio.sleep(POLL)
                claim = await asyncio.to_thread(leases.claimed, robot)
                self._heed(robot, claim)
                if claim is None:  # another process's word took its place, and is withdrawn
                    asked = ""
        finally:
            if asked is not None:
                await asyncio.to_thread(leases.withdraw, robot)

    async def _free(self, found: Owned | None) -> bool:
        """Whether no other process that lives has a robot, by its record."""
        if found is None or not found.held or found.owner == self.leases.owner:
            return True
        return not await asyncio.to_thread(self.leases.is_alive, found.owner)

    async def _settle(self, found: Owned | None) -> None:
        """Wait until whoever had a robot, and has not let it go, answers for it no more."""
        if found is None or not found.held or found.owner == self.leases.owner:
            return
        if not self._local or await asyncio.to_thread(self.leases.is_alive, found.owner):
            await asyncio.sleep(OVER)

    async def take_free(self, robot: str) -> Lease | None:
        """Make a robot this process's that no other one which lives has; None if one has it.

        Raises:
            UsageError, CheckpointError, OSError: the folder cannot be used.
        """
        found = await asyncio.to_thread(self.leases.read, robot)
        if not await self._free(found):
            return None
        lease = await asyncio.to_thread(self.leases.take, robot, found)
        if lease is not None:
            await self._settle(found)
        return lease

    async def release(self, lease: Lease) -> None:
        """Let a robot go. Where the folder cannot be used that is told: others take it by force."""
        self.holds.drop(lease)
        try:
            await asyncio.to_thread(self.leases.release, lease)
        except (WmrtError, OSError) as error:
            self._audit.note("lease_failed", robot=lease.robot, reason=str(error)[:300])

    def _heed(self, robot: str, claim: Claim | None) -> None:
        """Raise what the owner has denied this process's claim with."""
        if claim is None or claim.by != self.leases.owner or claim.denied is None:
            return
        if claim.denied == "unknown_session":
            raise unknown(robot)
        if claim.denied == "not_ready":
            raise Refusal("not_ready", f"robot {robot} cannot be handed over now")
        raise Refusal("held", f"another client holds robot {robot}, in another process")

    async def watch(self, registry: Registry) -> None:
        """Answer claims and obey orders until cancelled."""
        loop, answering = asyncio.get_running_loop(), None
        try:
            while True:
                await asyncio.sleep(POLL)
                try:
                    heard = await loop.run_in_executor(self._eye, self._look)
                except Exception:  # of one look; a folder that is gone is told once in a while
                    _log.exception("claims could not be read")
                    await asyncio.sleep(AGAIN)
                    continue
                self.orders.heed(heard)  # which wait for no robot that is put away
                if answering is None or answering.done():
                    claims = self.leases.claims(heard)
                    answering = loop.create_task(self._answer(registry, claims)) if claims else None
        finally:
            self.orders.close()
            if answering is not None:
                answering.cancel()

    def _look(self) -> list[str]:
        return self.holds.look(self.leases.heard)

    async def _answer(self, registry: Registry, claims: Iterable[str]) -> None:
        try:
            for robot in claims:
                place = registry.places.get(robot)
                if place is not None and not place.leaving:
                    await self._consider(registry, place)
        except Exception:
            _log.exception("claims could not be answered")
            await asyncio.sleep(AGAIN)

    async def _consider(self, registry: Registry, place: Place) -> None:
        robot = place.session.robot
        claim = await asyncio.to_thread(self.leases.claimed, robot)
        if claim is None or claim.denied is not None or claim.by == self.leases.owner:
            return
        if not await asyncio.to_thread(self.leases.is_alive, claim.by):
            # It would have the robot sent away again and again.
            await asyncio.to_thread(self.leases.withdraw, robot, claim.by)
            return
        denied = self._objection(place.session, claim.session)
        if denied is None and not await registry.keep(place):
            denied = "not_ready"  # a disk that takes nothing: here the robot goes on
        if place.leaving:  # it was lost, or has given its place away, meanwhile
            return
        if denied is None:
            await registry.leave(place)
            self._audit.note("handed_over", robot=robot, to=claim.by)
        else:
            await asyncio.to_thread(self.leases.deny, robot, claim, denied)
            self._audit.note("claim_denied", robot=robot, by=claim.by, reason=denied)

    def _objection(self, own: Session, wanted: int | None) -> str | None:
        """Why another process may not have a robot for a client that goes on with session
        ``wanted``, or begins one: a refusal's name; None if it may."""
        if wanted is not None:
            return None if wanted == own.id else "unknown_session"
        held = own.held(time.monotonic(), self._settings.hold)
        return "held" if held and self._settings.on_second_client == "refuse" else None

    def guarded(self, lease: Lease, reply: Reply, lost: Callable[[], object]) -> Reply:
        """``reply`` for a desk whose robot another process may take: no answer leaves once that
        makes a step, nor while nobody can tell.

        Args:
            lost: called as soon as that is seen, in whatever thread.
        """
        holds, hold = self.holds, self.holds.add(lease, lost)

        def ours(job: Job, answer: Acted | Refusal) -> None:
            if isinstance(answer, Acted) and not hold.fresh() and not (told := holds.ask(hold)):
                if told is None:  # it may be ours: it stays, and so does its client
                    said = f"whose robot {lease.robot} is cannot be read from the folder now"
                    answer = Refusal("not_ready", said)
                else:
                    answer = moved(lease.robot)
                answer.sequence = job.observed.sequence
            reply(job, answer)

        return ours
