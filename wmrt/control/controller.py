"""The controller: observation in, safe action out, at a fixed rate."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wmrt.control import settings
from wmrt.control.account import Account
from wmrt.control.assembly import assemble
from wmrt.control.channels import Channel, Channels
from wmrt.control.consult import NOT_ASKED, Consultant
from wmrt.control.convert import FLOAT32
from wmrt.control.defaults import breakers_for
from wmrt.control.falling_back import Asked, Fallback
from wmrt.control.intake import Intake
from wmrt.control.monitor import Monitor, attached
from wmrt.control.planning.protocol import Planning, planned
from wmrt.control.protocol import Policy, Recorder
from wmrt.control.stepping import Stepping
from wmrt.control.watchdog import Watchdog
from wmrt.core.clock import Clock, SystemClock
from wmrt.core.errors import STOPPING, SafetyError
from wmrt.safety import Breakers


class Controller(Stepping):
    """Puts a policy into a control loop, behind breakers.

    `act` never raises, whatever the observation, the policy, a channel, the fallback or the
    recorder does; what leaves is finite, in its box, and within its rate limits. Only
    ``KeyboardInterrupt`` and ``SystemExit`` pass: they ask the process to stop.

    When the policy's step has taken longer than ``deadline``, its result is discarded, and the
    action its last timely chunk planned for this step is sent, at most ``max_chunk_age`` steps
    after that chunk was made; then the fallback. With a ``watchdog`` the policy has a thread of its
    own, and `act` returns at the deadline, whether or not the policy ever does; see `Watchdog`.

    Args:
        model: the policy. It is told the action that was actually sent.
        period: control period, seconds.
        deadline: seconds from the call of `act` to the decision; default the period, `math.inf` for
            none.
        breakers: their own, built from `default_limits` unless given.
        fallback: where to ramp when the policy may not drive; default the schema's neutral action.
        recorder: gets every outcome and command; see `Recorder`.
        channels: two more opinions for level 3, or none.
        monitor: compares each observation with what the model expected of it; off by default.
        clock: what the rate limits go by, read once per step. The default is the machine's
            monotonic clock; a loop that does not run in real time needs `StepClock`.
        timer: nanoseconds, for durations and the deadline.
        robot: name in the record of breakers that are not given.
        max_chunk_age: see above.
        max_age: seconds an observation may be old, if `act` is told when it was captured; default
            any age. The ``max_age`` of a schema's field goes for that field.
        watchdog: the policy on its own thread; default: if there is a deadline, and ``clock`` is
            the machine's.
        resample: how to run a policy at a whole multiple of the rate it was trained at: ``linear``
            moves to each of its actions over the period it was trained at. Default: another rate
            than the policy's own is an error. A policy says it in ``period``, seconds.
        planner: plans around the model, such as `wmrt.control.planning.MPPI`; then ``model`` is a
            policy that plans. Default none.

    Raises:
        SafetyError: an argument of a wrong type or range; breakers for another policy or period; a
            period that is not the policy's.
        UnsupportedError: a planner that does not fit the deadline.
    """

    _lock: AbstractContextManager[Any]

    def __init__(
        self,
        model: Policy,
        period: float = 0.1,
        deadline: float | None = None,
        breakers: Breakers | None = None,
        fallback: Fallback | None = None,
        recorder: Recorder | None = None,
        channels: Sequence[Channel] = (),
        *,
        monitor: Monitor | None = None,
        clock: Clock | None = None,
        timer: Callable[[], int] = time.perf_counter_ns,
        robot: str = "robot",
        max_chunk_age: int = 3,
        max_age: float | None = None,
        watchdog: bool | None = None,
        resample: Literal["linear"] | None = None,
        planner: Planning | None = None,
    ) -> None:
        settings.policy("model", model)
        period, limit = settings.pace(period, deadline)
        kind = self._kind(settings.watchdog(watchdog, limit, clock))
        settings.parts(clock, timer, fallback, recorder)
        self.clock: Clock = SystemClock() if clock is None else clock
        self.breakers = breakers_for(model, period, breakers, settings.text("robot", robot))
        self.model = model = planned(model, planner, self.breakers.limits, limit, timer)
        self._timer, self._fallback = timer, Asked(fallback)
        self._channels = Channels(channels, model, timer)
        self._intake = Intake(model.schema, settings.nanoseconds("max_age", max_age))
        self._monitor = attached(monitor, model, period)
        self._consultant, self._plan = assemble(
            model, self._channels, self.breakers, limit, timer, kind=kind, resample=resample,
            max_chunk_age=max_chunk_age, foresight=self._monitor.foresight,
        )  # fmt: skip
        weakref.finalize(self, self._consultant.close)
        self._instruction = getattr(model.schema, "instruction", None)
        self._lock, self._sent = threading.RLock(), self.breakers.reference
        self._account = Account(recorder, self._channels, timer)
        self._account.attach(self)

    def _kind(self, watched: bool) -> type[Consultant]:
        return Watchdog if watched else Consultant

    def act(
        self, obs: Any, captured_ns: int | Mapping[str, int] | None = None
    ) -> NDArray[np.float32]:
        """The action to send now. Never raises.

        Args:
            obs: the state, a mapping of field names to values; or a mapping that holds it under
                ``"state"``, such as Gymnasium's info.
            captured_ns: when it was captured, on the controller's clock: one reading for the whole
                state, or a mapping of field to reading; see `Ages.check`.

        Returns:
            float32[A], normalised; ``last`` says how it came about.
        """
        with self._lock:
            try:
                state = self._open(obs, captured_ns)
                consulted = NOT_ASKED
                if state is not None:
                    consulted = self._consultant.ask(state, self._started)
                decision = self._decide(consulted)
            except STOPPING:
                raise
            except BaseException as error:  # none is known; this is the last line
                decision = self._failed(error)
            return np.array(self._settle(decision), FLOAT32)

    def reset(self, measured: Sequence[float] | None = None, *, heal: bool = True) -> None:
        """Start an episode: forget the past, start from ``measured`` (normalised), else neutral.

        A latch, and being disengaged, survive it; without ``heal``, every state of the breakers.

        Raises:
            SafetyError: a measured value that is not one finite number per actuator.
        """
        with self._lock:
            self.breakers.reset(measured, heal=heal)
            self._sent = self.breakers.reference
            self._void()
            self._intake.reset()
            dropped = self._consultant.clear()
            self._tell("reset", measured=measured, heal=heal, dropped=dropped)
            self._monitor.reset()
            self._consultant.reset()

    def engage(self, operator: str, measured: Sequence[float] | None = None) -> None:
        """Let the policy drive again, see `Breakers.engage`. Any thread may call it.

        Raises:
            SafetyError: no operator named, latched, closed, or a measured value that is not finite.
        """
        with self._lock:
            if self._closed:
                raise SafetyError("engage: this controller is closed; make a new one")
            self.breakers.engage(operator, measured)
            self._sent = self.breakers.reference
            self._void()
            self._tell("engage", operator=operator, measured=measured)

    def change_task(self, task: str) -> None:
        """The robot is to do something else: nothing planned so far is sent any more.

        A schema with an instruction field needs no call: a change of the text does the same.

        Args:
            task: a name, for the record.

        Raises:
            SafetyError: no name.
        """
        settings.text("task", task)
        with self._lock:
            self._void()
            self._tell("change_task", task=task, dropped=self._consultant.clear())

    def disengage(self) -> None:
        """The fallback drives until `engage`. Any thread may call it."""
        with self._lock:
            self.breakers.disengage()
            self._tell("disengage")

    def estop(self, pressed: bool = True) -> None:
        """Press or release the emergency stop; any thread, without waiting for a step that runs.

        The next action is the fallback's, also in a step that is under way. The stop stays latched
        after release, until `reset_latch` and then `engage`.
        """
        self.breakers.estop(pressed)
        if pressed:
            self._consultant.interrupt()
        self._tell("estop", pressed=bool(pressed))

    def reset_latch(self, operator: str) -> None:
        """End LATCHED. Nothing moves before `engage`.

        Raises:
            SafetyError: no operator named, nothing latched, or a cause persists.
        """
        with self._lock:
            self.breakers.reset_latch(operator)
            self._tell("reset_latch", operator=operator)

    def close(self) -> None:
        """Disengage for good. `act` still answers, with the fallback, and asks nobody."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self.breakers.disengage()
                self._tell("close", dropped=self._consultant.clear())
                self._consultant.close()

    def stats(self) -> dict[str, Any]:
        """Counters as plain data, for reports; durations in ms over the last 32 768 steps."""
        with self._lock:
            return {
                **self._account.tally.report(self.breakers),
                "unknown_values": self._intake.unknown,
                **self._channels.stats(),
                "monitor": self._monitor.report(),
            }
