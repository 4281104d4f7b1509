"""One robot's place in the process: its controller, its mailbox, and the thread it works in."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from wmrt.control import Channel, Controller, Outcome, StepClock, TimedController, default_limits
from wmrt.core.errors import SafetyError, UsageError
from wmrt.core.wire import Acted
from wmrt.safety import Breakers, State
from wmrt.safety.envelope import Envelope
from wmrt.service.consensus import opinions_of
from wmrt.service.doorbell import Doorbell
from wmrt.service.jobs import Job
from wmrt.service.logs import log
from wmrt.service.memories import Memory, Standing
from wmrt.service.placement import alarm_priority, place
from wmrt.service.refusals import Refusal
from wmrt.service.seats import Seat
from wmrt.service.settings import ServeSettings
from wmrt.service.watched import Watched
from wmrt.service.worker import Worker, promised

T = TypeVar("T")
#: Gets the answer, in the thread that decided the step; it must not raise.
Reply = Callable[[Job, Acted | Refusal], None]


class Desk:
    """A controller with a mailbox of one place: a newer observation replaces one that waits.

    Args:
        seat: the robot's policy. period: seconds.
        worker: where its calls run, and steps in which the policy is not asked; several desks may
            share one. reply: gets every answer.
        timed: steps are decided in the policy's thread, see `TimedController`; else in the worker.
        owned: that thread waits for observations at its robot's socket. options: of `Controller`.
        stands: is told where the breakers stand whenever that has changed, in the thread that
            changed it; it must neither wait nor raise.

    Attributes:
        policy: what the controller asks: the seat, under observation. channels: that vote with it.
        session: whose the robot is, 0 before anybody's.
        epoch: observations of another one are discarded. bell: where an ``owned`` thread waits.

    One thing is under way at a time: a step until it is decided, or calls. Whoever ends one looks
    what waits, so nobody waits for a turn.
    """

    def __init__(
        self,
        robot: str,
        seat: Seat,
        settings: ServeSettings,
        period: float,
        worker: Worker,
        reply: Reply,
        timed: bool = False,
        owned: bool = False,
        options: dict[str, Any] | None = None,
        stands: Callable[[Standing], object] | None = None,
    ) -> None:
        self.robot, self.seat, self.session, self.epoch = robot, seat, 0, 0
        self._worker, self._reply, self._stands = worker, reply, stands
        self._stood: object = None  # what ``stands`` was told last
        self._simulated = settings.clock == "step"
        self.breakers = Breakers(default_limits(seat.schema, seat.actions, period), robot=robot)
        self.policy = Watched(seat)
        self.bell = Doorbell(settings.spin * 1e-6) if timed and owned else None
        self.channels: Sequence[Channel] = (options or {}).get("channels", ())
        given: dict[str, Any] = {
            "breakers": self.breakers,
            "clock": StepClock(period) if self._simulated else None,
            "max_age": None if self._simulated else settings.max_age,
            "resample": settings.resample,
            **(options or {}),
        }
        if timed:
            given["prepare"] = partial(place, None, alarm_priority(settings.priority))
            given["bell"] = self.bell
        kind = TimedController if timed else Controller
        self.controller: Controller = kind(self.policy, period, settings.deadline, **given)
        self._mail, self._noting = threading.Lock(), threading.Lock()
        self._waiting: Job | None = None
        self._calls: deque[Callable[[], None]] = deque()
        self._turn = threading.Lock()
        self._job: tuple[Job, int, int] | None = None  # that is under way, since when, skipped
        self._skipped, self._stepped = 0, (0, -1)  # the latter: session and sequence
        self._pressed = False  # the emergency stop, and no action since

    def post(self, job: Job) -> Job | None:
        """Put an observation in; returns the one it replaces. Any thread, never waits."""
        with self._mail:
            replaced, self._waiting = self._waiting, job
            self._skipped += replaced is not None
        self._advance()
        return replaced

    def call(self, do: Callable[[], T]) -> Future[T]:
        """``do()`` in the worker's thread, between two steps."""
        future, run = promised(do)
        if self._worker.closed or not self._worker.alive:
            future.set_exception(
                UsageError(f"the service is stopping, or thread {self._worker.name} has ended")
            )
        else:
            self._calls.append(run)
            self._advance()
        return future

    def _advance(self) -> None:
        """Begin with what waits, unless something is under way. Any thread; does not wait."""
        while self._calls or self._waiting is not None:
            if not self._turn.acquire(False):
                return  # whoever has it comes here when he is through
            if self._calls:
                self._worker.put(self._run_calls)
                return
            if self._begin():
                return
            self._turn.release()

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()
            self._note()
        self._turn.release()
        self._advance()

    def _begin(self) -> bool:
        """Begin the step of the observation that waits; False if there is none to step."""
        with self._mail:
            job, self._waiting = self._waiting, None
            skipped, self._skipped = self._skipped, 0
        if job is None:
            return False
        seen = job.observed
        if seen.epoch != self.epoch:
            self._reply(job, Refusal("discarded", "a reset came before its step", seen.sequence))
            return False
        self._job = (job, time.perf_counter_ns(), skipped)
        if self.bell is not None:
            self.bell.busy()
        self.seat.enter()
        captured = None if self._simulated else job.captured_ns
        if isinstance(self.controller, TimedController):
            rest = self.controller.start(seen.state, captured, self._decided)
        else:
            rest = partial(self._act, seen.state, captured)
        if rest is not None:
            self._worker.put(rest)
        return True

    def _act(self, state: Any, captured_ns: int | None) -> None:
        try:
            action = self.controller.act(state, captured_ns)
        except BaseException:  # something asks this thread to end: what waits is done before
            self._worker.closed = True
            self.seat.leave()
            while self._calls:
                self._calls.popleft()()
            self._turn.release()
            raise
        self._decided(tuple(action.tolist()), self.controller.last)

    def _decided(self, action: tuple[float, ...], outcome: Outcome | None) -> None:
        """The step is over. In the thread that decided it."""
        self.seat.leave()
        assert self._job is not None  # set by `_begin`
        (job, began, skipped), self._job = self._job, None  # it holds a connection
        took = time.perf_counter_ns() - began
        self._stepped = (job.observed.session, job.observed.sequence)
        if self.breakers.state is State.LATCHED:
            self._pressed = False
        self._note()
        timing = (skipped, began - job.arrived_ns, took)
        try:
            self._reply(job, self._answer(job, action, outcome, timing))
        except Exception:  # a fault of ours must not keep the robot from its next step
            log.exception("an answer was not handed on", robot=self.robot)
        self._turn.release()
        self._advance()

    def _answer(
        self,
        job: Job,
        action: tuple[float, ...],
        last: Outcome | None,
        timing: tuple[int, int, int],
    ) -> Acted:
        seen, (skipped, queued, took) = job.observed, timing
        if last is None:  # the controller's own accounting failed; the action is the fallback's
            return Acted(
                seen.robot, seen.session, seen.epoch, seen.sequence, self.breakers.step,
                action, "fallback", self.breakers.state.value, (), False, skipped,
                seen.captured_ns, queued, None, took,
            )  # fmt: skip
        tripped = tuple(sorted(map(int, last.tripped))) if last.tripped else ()
        return Acted(
            seen.robot, seen.session, seen.epoch, seen.sequence, last.step, last.action,
            last.source, last.after.value, tripped, last.late, skipped, seen.captured_ns,
            queued, last.policy_ns, took,
        )  # fmt: skip

    def require_measured(self, measured: Sequence[float] | None) -> None:
        """`Refusal` refused where `reset` would raise; any thread, changes nothing."""
        if measured is not None:
            try:
                Envelope(self.breakers.limits).measured(measured)
            except SafetyError as error:
                raise Refusal("refused", str(error)) from None

    def reset(self, measured: Sequence[float] | None, heal: bool = True) -> None:
        """A new episode, or (not ``heal``) a new session; in the desk's thread. `SafetyError` for a
        measured value that is none."""
        self.controller.reset(measured, heal=heal)

    def estop(self, pressed: bool) -> None:
        """Press or release the emergency stop; any thread, never waits for a step."""
        self._pressed = self._pressed or pressed
        self.controller.estop(pressed)
        self._note()

    @property
    def pressed(self) -> bool:
        """The emergency stop was, and no action has left since."""
        return self._pressed

    @property
    def state(self) -> State:
        """Where the breakers stand; a stop that is to latch with the next action has latched."""
        return State.LATCHED if self._pressed else self.breakers.state

    def _note(self) -> None:
        """Say where the breakers stand if that is new: 0.3 us a step, where it seldom is."""
        if self._stands is None or not self.session or self._mark() == self._stood:
            return
        with self._noting:  # a stop is pressed in another thread: the last one to look tells last
            mark = self._mark()
            if mark != self._stood:
                self._stood = mark
                self._stands(self.standing())

    def _mark(self) -> object:
        own = self.breakers
        return own.state, own.engaged, self._pressed, self.session, self.epoch

    def standing(self) -> Standing:
        """Where the breakers stand now. Any thread."""
        own, session = self.breakers, self.session
        return Standing(
            *(self.robot, session, self.epoch),
            self._stepped[1] if self._stepped[0] == session else -1,
            *(own.reference, self.state.value, own.engaged),
        )

    def remember(self) -> Memory:
        """The robot's memory now; in the desk's thread. `UsageError` while the policy is at a step
        that is late: whoever waits for its end here keeps robots from their fallback."""
        if self.policy.running():
            raise UsageError("the policy is at a step that is late")
        own = self.standing()
        return Memory(
            *(own.robot, own.session, own.epoch, own.sequence, self.breakers.step),
            *(own.last_action, own.breakers, own.engaged, self.seat.snapshot()),
            opinions_of(self.channels),
        )

    def adopt(self, session: int, epoch: int, sequence: int = -1) -> None:
        """From here on the robot is ``session``'s, whose last observation that was stepped is
        ``sequence``; in the desk's thread. Where its breakers stand is told only then."""
        self.session, self.epoch, self._stepped = session, epoch, (session, sequence)

    def close(self) -> None:
        """No action leaves this desk any more; in its thread."""
        self._stands = None  # what closing does to them is nothing to come back to
        self.controller.close()
        self.seat.reset()
