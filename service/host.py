"""A process's robots as one thing: observations in, answers out, start and stop. In the event loop.

Nothing here waits for a step: desks work in threads of their own and answer through
``call_soon_threadsafe``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from wmrt.core.wire import Acted, Observed
from wmrt.safety import State
from wmrt.service.audit import Audit
from wmrt.service.crew import Crew
from wmrt.service.desk import Job
from wmrt.service.places import Opened
from wmrt.service.refusals import Refusal
from wmrt.service.registry import Registry
from wmrt.service.seats import warm_up
from wmrt.service.sessions import Holder, unknown
from wmrt.service.settings import ServeSettings

_log = logging.getLogger("wmrt.service")
Done = Callable[[Acted | Refusal], None]


class Host:
    """Keeps robots apart and the event loop free.

    Args:
        crew: seats and threads.
        audit: gets what concerns access and breakers.
        options: of every robot's `Controller`, such as a recorder.

    Attributes:
        registry: robots, seats, sessions.
        acted: functions that get every answer, in the event loop; for metrics and displays. One
            that raises is logged and changes nothing.
        counts: refusals by name, over all robots.
    """

    def __init__(
        self,
        crew: Crew,
        settings: ServeSettings,
        audit: Audit,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.crew, self.settings, self.audit = crew, settings, audit
        self.registry = Registry(crew, settings, audit, self._answered, options)
        self.acted: list[Callable[[Acted], object]] = []
        self.counts: Counter[str] = Counter()
        self.warm = self.draining = False
        self._latched: set[str] = set()
        self._keep_now = asyncio.Event()
        self._jobs: set[Job] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    @property
    def schema(self) -> Any:
        return self.crew.seats[0].schema

    @property
    def actions(self) -> Any:
        return self.crew.seats[0].actions

    async def start(self) -> None:
        """Step every seat a few times; ready afterwards."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(warm_up, self.crew.seats)
        self.warm = True
        self.audit.note("started", **self.crew.described)
        if self.registry.store is not None:
            self._tasks.append(asyncio.create_task(self._keep_all()))
        if self.registry.handover is not None:
            self._tasks.append(asyncio.create_task(self.registry.handover.watch(self.registry)))

    def reasons(self) -> list[str]:
        """Why this process is not ready; empty if it is."""
        found = [] if self.warm else ["the model is warming up"]
        found += ["the service is stopping"] if self.draining else []
        places = self.registry.places.items()
        latched = sorted(n for n, p in places if p.desk.breakers.state is State.LATCHED)
        if latched:
            found.append(f"latched until an operator resets: {', '.join(latched)}")
        return found

    def require_serving(self) -> None:
        """Raise `Refusal` while warming up or stopping."""
        if not self.warm:
            raise Refusal("not_ready", "the model is warming up; try again soon")
        if self.draining:
            raise Refusal("draining", "the service is stopping; try again soon, or elsewhere")

    async def open(
        self,
        robot: str,
        session: int | None,
        measured: Sequence[float] | None,
        holder: Holder | None,
        answered: int | None = None,
    ) -> Opened:
        """See `Registry.open`; also refuses while warming up or stopping."""
        try:
            self.require_serving()
            return await self.registry.open(robot, session, measured, holder, answered)
        except Refusal as refusal:
            self.counts[refusal.name] += 1
            raise

    async def resume(self, seen: Observed) -> Opened | None:
        """Restore the session of an observation that comes without a connection, if it is not in
        this process and there is a snapshot of its epoch; None if it is here, or nothing is kept.

        Raises:
            Refusal: by name; unknown_session: there is no such snapshot.
        """
        if seen.robot in self.registry.places or self.registry.store is None:
            return None
        opened = await self.open(seen.robot, seen.session, None, None, seen.sequence - 1)
        if opened.session.epoch < seen.epoch:  # of before a reset: another episode
            self.counts["unknown_session"] += 1
            raise unknown(seen.robot)
        return opened

    def submit(self, seen: Observed, done: Done) -> None:
        """Hand an observation in; ``done`` gets the answer, in the event loop.

        Raises:
            Refusal: by name; ``done`` is not called then.
        """
        try:
            self.require_serving()
            place = self.registry.place(seen.robot)
            captured = place.session.admit(seen, time.monotonic_ns())
        except Refusal as refusal:
            refusal.sequence = seen.sequence
            self.counts[refusal.name] += 1
            raise
        job = Job(seen, captured, time.perf_counter_ns(), done)
        self._jobs.add(job)
        self._idle.clear()
        replaced = place.desk.post(job)
        if replaced is not None:
            self._finish(
                replaced,
                Refusal("superseded", "a newer observation came", replaced.observed.sequence),
            )

    async def act(self, seen: Observed) -> Acted:
        """`submit`, and wait for the answer."""
        future: asyncio.Future[Acted | Refusal] = asyncio.get_running_loop().create_future()
        self.submit(seen, lambda a: None if future.done() else future.set_result(a))
        answer = await future
        if isinstance(answer, Refusal):
            raise answer
        return answer

    def _answered(self, job: Job, answer: Acted | Refusal) -> None:
        """In the desk's thread."""
        self._loop.call_soon_threadsafe(self._finish, job, answer)

    def _finish(self, job: Job, answer: Acted | Refusal) -> None:
        self._jobs.discard(job)
        if not self._jobs:
            self._idle.set()
        seen = job.observed
        place = self.registry.places.get(seen.robot)
        if isinstance(answer, Acted):
            self._look(answer)
            for listener in self.acted:
                try:
                    listener(answer)
                except Exception:  # a display must not stop a robot
                    _log.exception("a listener failed")
            if place is None or place.session.epoch != seen.epoch:
                answer = Refusal("discarded", "a reset came while it was in work", seen.sequence)
        if place is not None:
            kind = answer.name if isinstance(answer, Refusal) else "answered"
            place.session.counts[kind] += 1
        if isinstance(answer, Refusal):
            self.counts[answer.name] += 1
        job.done(answer)

    async def reset(
        self, robot: str, session: int, measured: Sequence[float] | None = None
    ) -> Opened:
        """A new episode of a session. What is in work is discarded at once.

        Raises:
            Refusal: by name.
        """
        self.require_serving()
        place = self.registry.place(robot)
        own = place.session
        own.require(session)
        own.epoch += 1
        place.desk.epoch = own.epoch
        await self.registry.in_thread(place, lambda: place.desk.reset(measured))
        if self.registry.handover is not None:  # whoever restores it must not go on before this
            await self.registry.keep(place)
        return Opened(own, "fresh", True, own.sequence)

    # Stopping

    async def drain(self) -> bool:
        """Take nothing more in and wait for what is in work, up to ``settings.drain`` seconds;
        whether all of it was answered."""
        self.draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), self.settings.drain)
        except asyncio.TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Keep every robot's memory, disengage, and end the threads. Once is enough."""
        if self._stopped:
            return
        self.draining = self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        why = Refusal("draining", "the service is stopping; connect again, or elsewhere")
        for place in list(self.registry.places.values()):
            try:
                await self.registry.put_away(place, why)
            except Exception:  # of one robot; the others are kept all the same
                _log.exception("robot %s was not put away", place.session.robot)
        await asyncio.to_thread(self.crew.close)
        self.registry.close()
        self.audit.note("stopped", refusals=dict(self.counts))

    def _look(self, answer: Acted) -> None:
        """A latch is kept at once: a process that is killed must not heal it."""
        if answer.breakers != State.LATCHED.value:
            self._latched.discard(answer.robot)
        elif answer.robot not in self._latched:
            self._latched.add(answer.robot)
            self._keep_now.set()

    async def _keep_all(self) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._keep_now.wait(), self.settings.snapshot_every or None)
            self._keep_now.clear()
            for place in list(self.registry.places.values()):
                try:
                    await self.registry.keep(place)
                except Exception:  # of one robot; the others are kept all the same
                    _log.exception("a snapshot of robot %s failed", place.session.robot)
