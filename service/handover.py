"""Robots that change hands between the processes that share a folder of snapshots.

A process that needs a robot asks its owner, which writes a snapshot and lets go. An owner that is
dead is not asked, and one that does not answer within `PATIENCE` is not waited for any longer: it
loses the robot, and what it did since its last snapshot, and finds out when it next answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from wmrt.core.errors import WmrtError
from wmrt.core.wire import Acted
from wmrt.service.audit import Audit
from wmrt.service.desk import Reply
from wmrt.service.jobs import Job
from wmrt.service.leases import Claim, Lease, Leases, moved
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
    """

    def __init__(self, leases: Leases, settings: ServeSettings, audit: Audit) -> None:
        self.leases, self._settings, self._audit = leases, settings, audit

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
            raise Refusal("not_ready", "the folder of snapshots cannot be used now") from None

    async def _acquire(self, robot: str, session: int | None) -> Lease:
        leases, end = self.leases, time.monotonic() + PATIENCE
        asked: str | None = None  # the owner that knows
        try:
            while True:
                found = await asyncio.to_thread(leases.read, robot)
                free = found is None or not found.held or found.owner == leases.owner
                if not free and found is not None:
                    free = not await asyncio.to_thread(leases.is_alive, found.owner)
                late = time.monotonic() > end
                if free or late:
                    lease = await asyncio.to_thread(leases.take, robot, found)
                    if lease is None:
                        continue  # somebody else was quicker
                    by_force = not free and found is not None
                    self._audit.note("took", robot=robot, token=lease.token, by_force=by_force)
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

    async def release(self, lease: Lease) -> None:
        """Let a robot go. Where the folder cannot be used that is told: others take it by force."""
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
        """Answer claims until cancelled."""
        while True:
            await asyncio.sleep(POLL)
            try:
                for robot in await asyncio.to_thread(self.leases.claims):
                    place = registry.places.get(robot)
                    if place is not None and not place.leaving:
                        await self._consider(registry, place)
            except Exception:  # of one look; a folder that is gone is told once in a while
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
        """``reply`` for a desk whose robot another process may take: no answer leaves after that.

        Args:
            lost: called then, in the desk's thread.
        """

        def ours(job: Job, answer: Acted | Refusal) -> None:
            if isinstance(answer, Acted) and not self.leases.holds(lease):
                lost()
                answer = moved(lease.robot)
                answer.sequence = job.observed.sequence
            reply(job, answer)

        return ours
