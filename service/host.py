"""A process's robots as one thing: observations in, answers out, start and stop. In the event loop.

Nothing here waits for a step: desks work in threads of their own and answer through
``call_soon_threadsafe``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from wmrt.core.wire import NAME_BYTES, Acted, Observed
from wmrt.service import health
from wmrt.service.audit import Audit
from wmrt.service.certificates import Certificate
from wmrt.service.crew import Crew
from wmrt.service.jobs import Job
from wmrt.service.logs import log
from wmrt.service.meter import Meter
from wmrt.service.outbox import Outbox
from wmrt.service.places import Opened, Place, finished
from wmrt.service.pulse import Pulse
from wmrt.service.refusals import Refusal
from wmrt.service.registry import Registry
from wmrt.service.seats import warm_up
from wmrt.service.sessions import Holder, unknown
from wmrt.service.settings import ServeSettings
from wmrt.service.telemetry import Telemetry
from wmrt.service.worker import start_io_threads

Done = Callable[[Acted | Refusal], None]
Send = Callable[[Acted], bool]
#: Seconds that a robot has to be kept in when the service stops.
PUT_AWAY = 5.0


class Host:
    """Keeps robots apart and the event loop free.

    Args:
        crew: seats and threads.
        audit: gets what concerns access and breakers.
        options: of every robot's `Controller`, such as a recorder.
        telemetry: gets spans of what happens between steps.

    Attributes:
        registry: robots, seats, sessions.
        acted: functions that get every answer, in the event loop; for metrics and displays. It may
            have been sent before. One that raises is logged and changes nothing.
        refused: the same for every refusal, of whichever part of the service.
        meter: what is counted. counts: of it, refusals by name. pulse: how late the loop is.
        outbox: answers on their way.
        certificate: that clients are shown; None without TLS.
        settle: called once all is there, before robots are served.
    """

    def __init__(
        self,
        crew: Crew,
        settings: ServeSettings,
        audit: Audit,
        options: dict[str, Any] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.crew, self.settings, self.audit = crew, settings, audit
        self.telemetry = telemetry or Telemetry()
        self.deadline = crew.period if settings.deadline is None else settings.deadline
        self.meter = Meter(self.deadline)
        self.outbox = Outbox(self.meter)
        self.acted, self.refused = self.outbox.acted, self.outbox.refused
        if crew.channels:
            options = {"channels": crew.channels, **(options or {})}
        self.registry = Registry(
            crew, settings, audit, self.outbox.answered, self.meter, self.telemetry, options
        )
        self.outbox.places = self.registry.places
        self.acted.append(self.registry.keeper.look)
        self.counts: Counter[str] = self.meter.refusals
        self.pulse = Pulse(self.meter.lag)
        self.certificate: Certificate | None = None
        self.settle: Callable[[], object] = lambda: None
        self.warm = self.draining = False
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
        self.outbox.runs_in(asyncio.get_running_loop())
        self._tasks.append(asyncio.create_task(self.pulse.run()))
        await start_io_threads()
        with self.telemetry.span("warm_up", robots=len(self.crew.seats)):
            await asyncio.to_thread(warm_up, self.crew.seats)
        self.settle()
        self.warm = True
        self.audit.note("started", **self.crew.described)
        if self.registry.store is not None:
            keeping = self.registry.keeper.run(self.registry.places)
            self._tasks.append(asyncio.create_task(keeping))
        if self.registry.handover is not None:
            self._tasks.append(asyncio.create_task(self.registry.handover.watch(self.registry)))

    def reasons(self) -> list[str]:
        """Why this process is not ready; empty if it is. See `wmrt.service.health`."""
        return health.reasons(self)

    def dying(self) -> list[str]:
        """Why only a restart would help; empty if none is needed."""
        return health.dying(self)

    def warnings(self) -> list[str]:
        """What somebody should look at, although robots are served."""
        return health.warnings(self)

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
            with self.telemetry.span("open", robot=robot[:NAME_BYTES], resumes=session is not None):
                return await self.registry.open(robot, session, measured, holder, answered)
        except Refusal as refusal:
            refusal.robot = robot
            self.refuse(refusal)
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
            refusal = unknown(seen.robot)
            self.refuse(refusal)
            raise refusal
        return opened

    def refuse(self, refusal: Refusal) -> None:
        """Count a refusal and tell who listens, once: whoever sends it to a client calls this."""
        self.outbox.refuse(refusal)

    def submit(self, seen: Observed, done: Done, send: Send | None = None) -> None:
        """Hand an observation in; ``done`` gets the answer, in the event loop.

        Args:
            send: is given an action first, in the thread that decided it; if it can send it at
                once, ``done`` is not called.

        Raises:
            Refusal: by name; ``done`` is not called then.
        """
        place = None
        try:
            self.require_serving()
            place = self.registry.place(seen.robot)
            with place.entering:
                captured = place.session.admit(seen, time.monotonic_ns())
                self._post(place, seen, captured, done, send)
        except Refusal as refusal:
            refusal.sequence, refusal.robot = seen.sequence, seen.robot
            if place is not None:
                place.meter.outcomes[refusal.name] += 1
            self.refuse(refusal)
            raise

    def take(
        self,
        seen: Observed,
        allowed: Callable[[], bool],
        done: Done,
        send: Send | None,
    ) -> bool:
        """`submit` in another thread than the event loop's. False, and nothing has changed, if it
        would be refused: saying so, and counting it, is the event loop's.

        Args:
            allowed: whether one more may come now.
        """
        place = self.registry.places.get(seen.robot)
        if place is None or self.draining or not self.warm:
            return False
        with place.entering:
            if place.leaving or not place.session.fits(seen) or not allowed():
                return False
            captured = place.session.accept(seen, time.monotonic_ns())
            self._post(place, seen, captured, done, send)
        return True

    def _post(
        self, place: Place, seen: Observed, captured: int | None, done: Done, send: Send | None
    ) -> None:
        job = Job(seen, captured, time.perf_counter_ns(), done, send)
        self.outbox.add(job)
        replaced = place.desk.post(job)
        if replaced is not None:
            job.since_ns = replaced.waits_ns
            why = Refusal("superseded", "a newer observation came", replaced.observed.sequence)
            self.outbox.replaced(replaced, why)

    async def act(self, seen: Observed) -> Acted:
        """`submit`, and wait for the answer."""
        future: asyncio.Future[Acted | Refusal] = asyncio.get_running_loop().create_future()
        self.submit(seen, lambda a: None if future.done() else future.set_result(a))
        answer = await future
        if isinstance(answer, Refusal):
            raise answer
        return answer

    async def reset(
        self, robot: str, session: int, measured: Sequence[float] | None = None
    ) -> Opened:
        """A new episode of a session. What is in work is discarded at once.

        Raises:
            Refusal: by name.
        """
        return await self.restart(*self.end_episode(robot, session, measured))

    def end_episode(
        self, robot: str, session: int, measured: Sequence[float] | None
    ) -> tuple[Place, Future[None]]:
        """The part of `reset` that does not wait: what is in work is discarded from here on."""
        self.require_serving()
        place = self.registry.place(robot)
        place.session.require(session)
        place.desk.require_measured(measured)  # an epoch that has begun cannot be refused any more
        with place.entering:
            place.session.epoch += 1
            place.desk.epoch = place.session.epoch
            return place, place.desk.call(lambda: place.desk.reset(measured))

    async def restart(self, place: Place, resetting: Future[None]) -> Opened:
        """The part of `reset` that waits for a step."""
        own = place.session
        with self.telemetry.span("reset", robot=own.robot, epoch=own.epoch):
            await finished(resetting)
        if self.registry.handover is not None:  # whoever restores it must not go on before this
            await self.registry.keep(place)
        return Opened(own, "fresh", True, own.sequence)

    # Stopping

    async def drain(self) -> bool:
        """Take nothing more in and wait for what is in work, up to ``settings.drain`` seconds;
        whether all of it was answered."""
        self.draining = True
        try:
            await asyncio.wait_for(self.outbox.idle.wait(), self.settings.drain)
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
        await asyncio.gather(*map(self._put_away, list(self.registry.places.values())))
        await asyncio.to_thread(self.crew.close)
        self.registry.close()
        self.audit.note("stopped", refusals={k: n for k, n in self.counts.items() if n})

    async def _put_away(self, place: Place) -> None:
        why = Refusal("draining", "the service is stopping; connect again, or elsewhere")
        try:
            await asyncio.wait_for(self.registry.put_away(place, why), PUT_AWAY)
        except Exception:  # of one robot, such as one whose policy hangs; the others are kept
            log.exception("a robot was not put away", robot=place.session.robot)
