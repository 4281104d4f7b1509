"""A controller whose steps are decided in the policy's own thread: nobody waits for an answer.

`Controller.act` gives its caller control back at the deadline, which costs a second thread and two
changes between them a step. Where only the action has to leave in time, as in a service, the thread
that has asked the policy sends it; an alarm does if that takes too long.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.control.alarm import Alarm
from wmrt.control.consult import NOT_ASKED, Consultant, Consulted, Question, Reply
from wmrt.control.controller import Controller
from wmrt.control.convert import FLOAT32
from wmrt.control.protocol import Outcome
from wmrt.control.turn import Turn
from wmrt.control.watchdog import Timed
from wmrt.control.worker import Bell
from wmrt.core.errors import STOPPING, SafetyError
from wmrt.safety import Decision

#: Gets the action to send now, a tuple of float32 values, and how it came about; None if that was
#: not to be had. An array would cost 4 us more, where nobody needs one.
Decided = Callable[[tuple[float, ...], "Outcome | None"], object]


class Step:
    """A step that is not decided yet.

    Attributes:
        error: asks the process to stop; the step is not decided then, and somebody waits for it.
    """

    __slots__ = ("decided", "error", "replaced", "waits")

    def __init__(self, decided: Decided, waits: bool) -> None:
        self.decided, self.waits = decided, waits
        self.replaced: Question | None = None
        self.error: BaseException | None = None


class TimedController(Controller):
    """A `Controller` with `start` besides `act`; nothing of what it decides differs.

    Between the call of `start` and the decision it is the step's turn, and `reset`, `engage` and
    the others wait, as they wait for `act`.

    Args:
        prepare: called in the alarm's thread when that starts, for its priority and processor: it
            has to run while the policy keeps one busy.
        bell: where the policy's thread waits for questions; it may bring them itself.
        others: as of `Controller`. Without a watchdog the policy has its thread all the same, and a
            result that is late is found so when it comes.
    """

    def __init__(
        self,
        *arguments: Any,
        prepare: Callable[[], object] = lambda: None,
        bell: Bell | None = None,
        **others: Any,
    ) -> None:
        self._watched = False
        super().__init__(*arguments, **others)
        self._turn = self._lock = Turn()
        self._claim = threading.Lock()
        self._pending: Step | None = None
        self._own = weakref.ref(self)
        timed = self._consultant.inner
        assert isinstance(timed, Timed)  # `_kind` says so
        self._timed = timed
        if bell is not None:
            timed.wait_at(bell)
        if self._watched:
            timed.alarm = Alarm(_weakly(self._own), timed._deadline_ns, self._timer, prepare)

    def _kind(self, watched: bool) -> type[Consultant]:
        self._watched = watched
        return Timed

    def act(
        self, obs: Any, captured_ns: int | Mapping[str, int] | None = None
    ) -> NDArray[np.float32]:
        done = _thread.allocate_lock()
        done.acquire()
        sent: list[tuple[float, ...]] = []

        def decided(action: tuple[float, ...], outcome: Outcome | None) -> None:
            sent.append(action)
            done.release()

        step = Step(decided, True)
        rest = self._start(step, obs, captured_ns)
        if rest is not None:
            rest()
        done.acquire()
        if step.error is not None:
            raise step.error
        return np.array(sent[0], FLOAT32)

    act.__doc__ = Controller.act.__doc__

    def start(
        self, obs: Any, captured_ns: int | Mapping[str, int] | None, decided: Decided
    ) -> Callable[[], None] | None:
        """Begin a step and return. Never raises, and waits only for the turn.

        Args:
            obs, captured_ns: as of `act`.
            decided: gets the action, once and by the deadline, in another thread: the policy's, the
                alarm's, or whichever calls what this returns. It must not raise. A next step may be
                begun in it.

        Returns:
            None: the policy is asked. Else nobody has to be, and what is left of the step, which
            may call a fallback and a recorder of the user's, is to be called in a thread that may
            wait for them.
        """
        return self._start(Step(decided, False), obs, captured_ns)

    def _start(self, step: Step, obs: Any, captured_ns: Any) -> Callable[[], None] | None:
        turn, timed = self._turn, self._timed
        error: BaseException | None = None
        turn.enter()
        if turn.depth > 1:
            turn.leave()
            raise SafetyError("act: called by something that act called; a step is under way")
        try:
            state = self._open(obs, captured_ns)
            between = None
            if state is not None and self._consultant is not timed:
                between = self._consultant.between()
            asks = state is not None and between is None
        except BaseException as caught:  # none is known; this is the last line
            error, asks, between = caught, False, None
        turn.suspend()
        if asks:
            assert state is not None
            error = self._put(step, state)
            if error is None:
                return None
        self._pending = step
        consulted = NOT_ASKED if between is None else between
        return lambda: self._finish(step, consulted, error)

    def _put(self, step: Step, state: Mapping[str, Any]) -> BaseException | None:
        """Ask; what has failed if nobody is asked: the first question starts threads, of which
        there may be no more to be had."""
        timed = self._timed
        with self._claim:  # so that nobody decides it before it is all here
            self._pending = step
            try:
                if timed.alarm is not None:
                    timed.alarm.arm(self._started + timed._deadline_ns, step)
                step.replaced = timed.put(state, self._started, _settler(self._own, step))
            except BaseException as caught:
                return caught
        if timed.interrupted and timed.alarm is not None:  # before it was armed
            timed.alarm.ring()
        return None

    def _take(self, step: Step) -> bool:
        """Whether the caller is the one who decides ``step``."""
        with self._claim:
            if self._pending is not step:
                return False
            self._pending = None
            if self._timed.alarm is not None:
                self._timed.alarm.disarm()
            return True

    def _replied(self, step: Step, reply: Reply | BaseException) -> bool:
        """In the policy's thread; False if the step was decided without it."""
        if not self._take(step):
            return False
        self._timed.rest()
        self._conclude(step, reply)
        return True

    def _late(self, step: Step) -> None:
        """In the alarm's thread."""
        if self._take(step):
            self._conclude(step, None)

    def _conclude(self, step: Step, reply: Reply | BaseException | None) -> None:
        self._turn.resume()
        consulted, error = NOT_ASKED, None
        try:
            if isinstance(reply, BaseException):
                raise reply
            consulted = self._timed.found(reply, step.replaced, self._started)
            if self._consultant is not self._timed:
                consulted = self._consultant.taken(consulted)
        except BaseException as caught:
            error = caught
        self._end(step, consulted, error)

    def _finish(self, step: Step, consulted: Consulted, error: BaseException | None) -> None:
        """A step in which nobody is asked."""
        if self._take(step):
            self._turn.resume()
            self._end(step, consulted, error)

    def _end(self, step: Step, consulted: Consulted, error: BaseException | None) -> None:
        decision: Decision | None = None
        action: tuple[float, ...] = ()
        try:
            if error is not None:
                raise error
            decision = self._decide(consulted)
        except BaseException as caught:
            if step.waits and isinstance(caught, STOPPING):
                step.error = caught
            else:
                decision = self._failed(caught)
        if decision is not None:
            try:
                action = self._settle(decision)
            except STOPPING as caught:  # of the recorder's
                step.error, action = caught, decision.action
        outcome = self.last
        self._timed.interrupted = False  # a stop that came has been seen
        self._turn.leave()
        step.decided(action, outcome)

    def stats(self) -> dict[str, Any]:
        """See `Controller.stats`; ``deadline_by`` says what keeps it."""
        return {**super().stats(), "deadline_by": "timer" if self._watched else "none"}


def _settler(own: weakref.ref[TimedController], step: Step) -> Callable[[Any], bool]:
    """For the policy's thread, which holds nobody alive."""

    def settle(reply: Reply | BaseException) -> bool:
        whose = own()
        return whose is not None and whose._replied(step, reply)

    return settle


def _weakly(own: weakref.ref[TimedController]) -> Callable[[Step], None]:
    def ring(step: Step) -> None:
        whose = own()
        if whose is not None:
            whose._late(step)

    return ring
