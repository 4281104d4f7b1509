"""Answers, on their way from the thread that decided a step to the client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeVar

from wmrt.core.wire import Acted
from wmrt.safety import State
from wmrt.service.jobs import Job
from wmrt.service.logs import log, overrun, stalled
from wmrt.service.meter import Meter
from wmrt.service.places import Place, Seen
from wmrt.service.refusals import Refusal

T = TypeVar("T")
#: Seconds that ordinary steps may go uncounted. A loop of 1 kHz otherwise wakes the event loop a
#: thousand times a second, which then is in the way of the next step.
UNCOUNTED = 0.01


class Outbox:
    """What is in work, and who hears of what became of it.

    An action is sent by the thread that decided it where its connection can do that: the way
    through the event loop cost 50 to 100 us more.

    Attributes:
        acted, refused: see `Host`. places: robots that have a seat. loop: the event loop.
        jobs: observations without an answer. idle: set while there are none.
        sent: actions by who sent them: ``at once``, or ``in the event loop``.
    """

    loop: asyncio.AbstractEventLoop
    _thread: int

    def runs_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """The event loop is ``loop``, and this is its thread."""
        self.loop, self._thread = loop, threading.get_ident()

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.acted: list[Callable[[Acted], object]] = []
        self.refused: list[Callable[[Refusal], object]] = []
        self.places: dict[str, Place] = {}
        self.jobs: set[Job] = set()
        self._counting = threading.Lock()
        self.idle = asyncio.Event()
        self.idle.set()
        self.sent: Counter[str] = Counter()
        self._told: deque[tuple[Job, Acted, int]] = deque()
        self._coming, self._caught_up = False, 0.0  # `catch_up` will be called; when it was last

    @property
    def working(self) -> bool:
        """Whether a robot waits for its answer. Any thread."""
        return len(self.jobs) > len(self._told)

    def add(self, job: Job) -> None:
        """It is in work. Any thread."""
        with self._counting:
            self.jobs.add(job)
            self.idle.clear()

    def oldest(self) -> Job | None:
        """The observation whose robot has waited longest for an answer."""
        return min(list(self.jobs), key=lambda job: job.waits_ns, default=None)

    def refuse(self, refusal: Refusal) -> None:
        """See `Host.refuse`."""
        if self._meter.refused(refusal):
            _tell(self.refused, refusal)

    def answered(self, job: Job, answer: Acted | Refusal) -> None:
        """In the thread that decided the step: send its action at once if that can be done."""
        if job.send is None or isinstance(answer, Refusal) or self._outdated(job):
            self.loop.call_soon_threadsafe(self.finish, job, answer)
            return
        # It is to be counted before anybody can ask about it who has got it.
        self._told.append((job, answer, time.perf_counter_ns()))
        sent = job.send(answer)
        self.sent["at once" if sent else "in the event loop"] += 1
        if not sent:
            self.loop.call_soon_threadsafe(job.done, answer)
        self._have_counted(answer)

    def _have_counted(self, answer: Acted) -> None:
        """Have the event loop catch up: at once where somebody waits to hear of it."""
        if answer.late or answer.breakers != State.CLOSED.value:
            self.loop.call_soon_threadsafe(self.catch_up)
        elif not self._coming:
            self._coming = True
            self.loop.call_soon_threadsafe(self._catch_up_soon)

    def _catch_up_soon(self) -> None:
        wait = self._caught_up + UNCOUNTED - time.monotonic()
        if wait > 0:
            self.loop.call_later(wait, self.catch_up)
        else:
            self.catch_up()

    def _outdated(self, job: Job) -> bool:
        """Whether a reset has come while it was in work, or its robot has left."""
        place = self.places.get(job.observed.robot)
        return place is None or place.session.epoch != job.observed.epoch

    def catch_up(self) -> None:
        """Count what was sent from other threads. Before anybody is told of anything."""
        self._coming, self._caught_up = False, time.monotonic()
        while self._told:
            job, answer, answered_ns = self._told.popleft()
            self._acted(job, answer, answered_ns)
            self._over(job, answer)

    def finish(self, job: Job, answer: Acted | Refusal) -> None:
        self.catch_up()
        if isinstance(answer, Acted):
            self._acted(job, answer, time.perf_counter_ns())
            if self._outdated(job):
                sequence = job.observed.sequence
                answer = Refusal("discarded", "a reset came while it was in work", sequence)
        self._over(job, answer)
        job.done(answer)

    def replaced(self, job: Job, refusal: Refusal) -> None:
        """A newer observation has taken its place. Any thread."""
        if threading.get_ident() == self._thread:
            self.finish(job, refusal)
        else:
            self.loop.call_soon_threadsafe(self.finish, job, refusal)

    def _acted(self, job: Job, answer: Acted, answered_ns: int) -> None:
        place = self.places.get(job.observed.robot)
        meter = None
        if place is not None:
            meter, place.seen = place.meter, Seen(job.observed, _age(job, answer))
        stall = self._meter.acted(answer, job.arrived_ns, meter, answered_ns)
        if stall is not None:
            stalled(answer, stall)
        if answer.late and meter is not None:
            overrun(answer, meter)
        _tell(self.acted, answer)

    def _over(self, job: Job, answer: Acted | Refusal) -> None:
        """Nothing of it is in work any more."""
        with self._counting:  # `idle` tells of all of them, whoever adds one now
            self.jobs.discard(job)
            if not self.jobs:
                self.idle.set()
        place = self.places.get(job.observed.robot)
        if place is not None:
            kind = answer.name if isinstance(answer, Refusal) else "answered"
            place.session.counts[kind] += 1
            place.meter.outcomes[kind] += 1
        if isinstance(answer, Refusal):
            answer.robot = job.observed.robot
            self.refuse(answer)


def _tell(listeners: list[Callable[[T], object]], what: T) -> None:
    for listener in listeners:
        try:
            listener(what)
        except Exception:  # a display must not stop a robot
            log.exception("a listener failed")


def _age(job: Job, answer: Acted) -> int | None:
    """How old the observation was when its step began, ns; the two clocks may count differently."""
    if job.captured_ns is None:
        return None
    since_arrival = time.perf_counter_ns() - job.arrived_ns
    return time.monotonic_ns() - since_arrival - job.captured_ns + answer.queue_ns
