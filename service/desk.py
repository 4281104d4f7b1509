"""One robot's place in the process: its controller, its mailbox, and the thread it works in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from wmrt.control import Controller, StepClock, default_limits
from wmrt.core.wire import Acted, Observed
from wmrt.runtime.snapshot import Snapshot
from wmrt.safety import Breakers, State
from wmrt.service.refusals import Refusal
from wmrt.service.seats import Seat
from wmrt.service.settings import ServeSettings
from wmrt.service.watched import Watched
from wmrt.service.worker import Worker

#: Gets the answer, in the desk's thread.
Reply = Callable[["Job", "Acted | Refusal"], None]


@dataclass(eq=False)
class Job:
    """An observation in the mailbox.

    Attributes:
        captured_ns: on this machine's clock. arrived_ns: of `time.perf_counter_ns`.
        done: for whoever handed it in; the desk does not look at it.
    """

    observed: Observed
    captured_ns: int | None
    arrived_ns: int
    done: Callable[[Acted | Refusal], None]


class Memory(NamedTuple):
    """What makes a robot continue where it was.

    Attributes:
        sequence: of the session's last observation that was stepped, -1 for none.
        steps: control steps so far.
        last_action: the last one sent, normalised.
        breakers: their state. engaged: whether the policy may drive.
        snapshot: of the model's memory.
    """

    robot: str
    session: int
    epoch: int
    sequence: int
    steps: int
    last_action: tuple[float, ...]
    breakers: str
    engaged: bool
    snapshot: Snapshot


class Desk:
    """A controller with a mailbox of one place: a newer observation replaces one that waits.

    Args:
        seat: the robot's policy. period: seconds.
        worker: where its steps run; several desks may share one.
        reply: gets every answer.
        options: further ones of `Controller`, such as a recorder.

    Attributes:
        policy: what the controller asks: the seat, under observation.
        epoch: observations of another one are discarded.
    """

    def __init__(
        self,
        robot: str,
        seat: Seat,
        settings: ServeSettings,
        period: float,
        worker: Worker,
        reply: Reply,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.robot, self.seat, self.epoch = robot, seat, 0
        self._worker, self._reply = worker, reply
        self._simulated = settings.clock == "step"
        self.breakers = Breakers(default_limits(seat.schema, seat.actions, period), robot=robot)
        self.policy = Watched(seat)
        self.controller = Controller(
            self.policy,
            period,
            settings.deadline,
            breakers=self.breakers,
            clock=StepClock(period) if self._simulated else None,
            max_age=None if self._simulated else settings.max_age,
            resample=settings.resample,
            **(options or {}),
        )
        self._mail = threading.Lock()
        self._waiting: Job | None = None
        self._skipped = 0
        self._stepped = (0, -1)  # session and sequence

    def post(self, job: Job) -> Job | None:
        """Put an observation in; returns the one it replaces. Any thread, never waits."""
        with self._mail:
            replaced, self._waiting = self._waiting, job
            if replaced is not None:
                self._skipped += 1
                return replaced
        self._worker.put(self._step)
        return None

    def _step(self) -> None:
        with self._mail:
            job, self._waiting = self._waiting, None
            skipped, self._skipped = self._skipped, 0
        if job is None:
            return
        seen = job.observed
        if seen.epoch != self.epoch:
            self._reply(job, Refusal("discarded", "a reset came before its step", seen.sequence))
            return
        began = time.perf_counter_ns()
        self.seat.enter()
        try:
            captured = None if self._simulated else job.captured_ns
            action = self.controller.act(seen.state, captured)
        finally:
            self.seat.leave()
        took = time.perf_counter_ns() - began
        self._stepped = (seen.session, seen.sequence)
        self._reply(job, self._answer(job, action, took, began - job.arrived_ns, skipped))

    def _answer(self, job: Job, action: Any, took: int, queued: int, skipped: int) -> Acted:
        seen, last = job.observed, self.controller.last
        common = (seen.robot, seen.session, seen.epoch, seen.sequence)
        if last is None:  # the controller's own accounting failed; the action is the fallback's
            return Acted(
                *(*common, self.breakers.step, tuple(action.tolist()), "fallback"),
                *(self.breakers.state.value, (), False, skipped, seen.captured_ns, queued),
                *(None, took),
            )
        return Acted(
            *(*common, last.step, last.action, last.source, last.after.value),
            *(tuple(sorted(map(int, last.tripped))), last.late, skipped, seen.captured_ns),
            *(queued, last.policy_ns, took),
        )

    def call(self, do: Callable[[], Any]) -> Future[Any]:
        """``do()`` in the desk's thread, between two steps."""
        return self._worker.call(do)

    def reset(self, measured: Sequence[float] | None) -> None:
        """A new episode; in the desk's thread. `SafetyError` for a measured value that is none."""
        self.controller.reset(measured)

    def remember(self, session: int) -> Memory:
        """The robot's memory now; in the desk's thread."""
        breakers = self.breakers
        sequence = self._stepped[1] if self._stepped[0] == session else -1
        return Memory(
            *(self.robot, session, self.epoch, sequence, breakers.step),
            *(breakers.reference, breakers.state.value, breakers.engaged, self.seat.snapshot()),
        )

    def recall(self, memory: Memory) -> None:
        """Continue from ``memory``; in the desk's thread. `UsageError` if it is another model's."""
        self.seat.restore(memory.snapshot)  # refuses before anything has changed
        self.controller.reset(memory.last_action)  # which forgets it
        self.seat.restore(memory.snapshot)
        self.epoch, self._stepped = memory.epoch, (memory.session, memory.sequence)
        self.caution(memory.breakers, memory.engaged, memory.last_action)

    def caution(self, state: str, engaged: bool, last: Sequence[float] | None) -> None:
        """Bring fresh breakers to where they were before this process: a restart heals nothing.

        One observation that is unfit opens them. What it answers goes nowhere, so the next action
        may differ from the last one sent by two periods' worth, which is what the rate limits allow
        after a gap as long as a restart.
        """
        if state == State.LATCHED.value:
            self.controller.estop()
            self.controller.act(None)
            self.controller.estop(False)  # released; the latch stays until an operator resets it
        elif state in (State.OPEN.value, State.HALF_OPEN.value):
            self.controller.act(None)
            self.controller.engage("restart of the service", last)
        if not engaged and state != State.LATCHED.value:
            self.controller.disengage()

    def close(self) -> None:
        """No action leaves this desk any more; in its thread."""
        self.controller.close()
        self.seat.reset()
