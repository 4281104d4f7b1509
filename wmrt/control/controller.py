"""The controller: observation in, safe action out, at a fixed rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.control import settings
from wmrt.control.asking import ask
from wmrt.control.channels import Channel, Channels
from wmrt.control.defaults import default_limits
from wmrt.control.intake import Intake
from wmrt.control.plan import Plan
from wmrt.control.protocol import Outcome, Policy, Recorder
from wmrt.control.tally import Tally
from wmrt.core.clock import Clock, SystemClock
from wmrt.core.errors import SafetyError
from wmrt.safety import (
    Breakers,
    Cause,
    Decision,
    Finding,
    Level,
    Proposal,
    State,
)

Rows = tuple[tuple[float, ...], ...]
#: (state or None when the input is unfit, last action sent) -> action to ramp to.
Fallback = Callable[[Mapping[str, Any] | None, tuple[float, ...]], Sequence[float]]


@dataclass
class _Asked:
    """What happened in the step so far."""

    started: int = 0
    now_ns: int = 0
    state: dict[str, Any] | None = None
    policy_ns: int | None = None
    late: bool = False


class Controller:
    """Puts a policy into a control loop, behind breakers.

    `act` never raises, whatever the observation, the policy, a channel, the fallback or the
    recorder does; what leaves is finite, in its box, and within its rate limits. Only
    ``KeyboardInterrupt`` and ``SystemExit`` pass: they ask the process to stop.

    A policy that is late is not interrupted. When its step has taken longer than ``deadline``, its
    result is discarded, and the action its last timely chunk planned for this step is sent, at most
    ``max_chunk_age`` steps after that chunk was made; then the fallback.

    Args:
        model: the policy. It is told the action that was actually sent.
        period: control period, seconds.
        deadline: seconds from the call of `act` to the decision; default the period, `math.inf` for
            none.
        breakers: their own, built from `default_limits` unless given.
        fallback: where to ramp when the policy may not drive; default the schema's neutral action.
        recorder: gets every outcome.
        channels: two more opinions for level 3, or none.
        clock: what the rate limits go by, read once per step. The default is the machine's
            monotonic clock; a loop that does not run in real time needs `StepClock`.
        timer: nanoseconds, for durations and the deadline.
        robot: name in the record of breakers that are not given.
        max_chunk_age: see above.
        max_age: seconds an observation may be old, if `act` is told when it was captured; default
            any age.

    Raises:
        SafetyError: an argument of a wrong type or out of its range, named with what is allowed, or
            breakers for another policy or period.
    """

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
        clock: Clock | None = None,
        timer: Callable[[], int] = time.perf_counter_ns,
        robot: str = "robot",
        max_chunk_age: int = 3,
        max_age: float | None = None,
    ) -> None:
        settings.policy("model", model)
        period = settings.seconds("period", period)
        limit = (
            period if deadline is None else settings.seconds("deadline", deadline, infinite=True)
        )
        self.model = model
        self.clock: Clock = SystemClock() if clock is None else clock
        settings.has_methods("clock", self.clock, ("now_ns",))
        self.breakers = self._breakers(model, period, breakers, settings.text("robot", robot))
        settings.require(callable(timer), "timer", "a function () -> nanoseconds", timer)
        settings.function("fallback", fallback, "(state, last action) -> action")
        settings.has_methods("recorder", recorder, ("record",), optional=True)
        self._deadline_ns = limit * 1e9
        self._timer = timer
        self._fallback, self._recorder = fallback, recorder
        self._channels = Channels(channels, len(model.actions))
        self._intake = Intake(model.schema, settings.nanoseconds("max_age", max_age))
        self._predicted = tuple(bound.name for bound in self.breakers.limits.state)
        self._plan = Plan(settings.count("max_chunk_age", max_chunk_age, 0))
        self._lock = threading.RLock()
        self._closed = False
        self._tally = Tally()
        self._sent = self.breakers.reference
        self.last: Outcome | None = None

    @staticmethod
    def _breakers(model: Policy, period: float, given: Breakers | None, robot: str) -> Breakers:
        """Those given, if they are for this policy, else the default ones."""
        if given is None:
            return Breakers(default_limits(model.schema, model.actions, period), robot=robot)
        settings.require(isinstance(given, Breakers), "breakers", "wmrt.safety.Breakers", given)
        limits = given.limits
        if limits.spec != model.actions or limits.period != period:
            raise SafetyError(
                f"breakers for {limits.spec.names} at {limits.period} s do not fit a policy with "
                f"{model.actions.names} at {period} s; build them with default_limits"
            )
        return given

    def act(self, obs: Any, captured_ns: int | None = None) -> NDArray[np.float32]:
        """The action to send now. Never raises.

        Args:
            obs: the state, a mapping of field names to values; or a mapping that holds it under
                ``"state"``, such as Gymnasium's info.
            captured_ns: when it was captured, on the controller's clock.

        Returns:
            float32[A], normalised; ``last`` says how it came about.
        """
        with self._lock:
            asked, self.last = _Asked(), None
            try:
                asked.started = self._timer()
                asked.now_ns = self.clock.now_ns()
                decision = self._decide(asked, obs, captured_ns)
            except Exception as error:  # none is known; this is the last line
                decision = self._failed(error)
            self._account(decision, asked)
            self._sent = decision.action
            return np.array(decision.action, np.float32)

    def _decide(self, asked: _Asked, obs: Any, captured_ns: Any) -> Decision:
        breakers = self.breakers
        breakers.begin(asked.now_ns)
        self._plan.tick()
        seen = self._intake.read(obs, asked.now_ns, captured_ns)
        asked.state = seen.state
        chunk: Rows = ()
        proposal, votes = None, None
        if breakers.admit(seen.faults, seen.notes) and seen.state is not None:
            proposal, votes, chunk = self._consult(asked, seen.state)
        fallback = None if self._fallback is None else self._goal(self._fallback, seen.state)
        decision = breakers.decide(proposal, fallback, votes)
        if proposal is not None and not asked.late:
            self._plan.store(() if Level.RANGE in decision.tripped else chunk)
        return decision

    def _consult(
        self, asked: _Asked, state: dict[str, Any]
    ) -> tuple[Proposal, list[tuple[float, ...] | None] | None, Rows]:
        """Ask the policy and the channels; what they say is dropped if it comes too late."""
        breakers = self.breakers
        previous = breakers.reference
        answer = ask(self.model, state, previous, self._predicted, self._plan.rows, self._timer)
        asked.policy_ns = answer.policy_ns
        if answer.note is not None:
            breakers.report(Cause.NOTE, answer.note)
        votes, failed = self._channels.ask(breakers.step, state, previous)
        for finding in failed:
            breakers.report(Cause.CHANNEL, finding)
        took = self._timer() - asked.started
        if took <= self._deadline_ns:
            return answer.proposal, votes, answer.chunk
        asked.late = True
        breakers.report(Cause.DEADLINE, Finding("", "late", took, round(self._deadline_ns)))
        if answer.proposal.fault is not None:
            return answer.proposal._replace(late=True), None, ()
        planned = self._plan.action()
        if planned is None:
            breakers.report(Cause.STARVED, Finding("", "no planned action"))
        return Proposal(planned, late=True), None, ()

    def _goal(
        self, fallback: Fallback, state: dict[str, Any] | None
    ) -> Callable[[], Sequence[float]]:
        return lambda: fallback(None if state is None else dict(state), self.breakers.reference)

    def _failed(self, error: Exception) -> Decision:
        """This code, the clock or the timer failed: latch and hold the last action."""
        try:
            return self.breakers.emergency(error)
        except Exception:  # breakers of the user's own that fail as well
            state = State.LATCHED
            return Decision(self._sent, "fallback", state, state, frozenset())

    def _account(self, decision: Decision, asked: _Asked) -> None:
        """Count and record. What fails here is counted and changes nothing else."""
        try:
            outcome = Outcome(
                self.breakers.step, asked.now_ns, *decision, asked.late, asked.policy_ns,
                self._timer() - asked.started,
            )  # fmt: skip
            self.last = outcome
            self._tally.add(outcome)
            if self._recorder is not None:
                self._recorder.record(outcome, asked.state)
        except Exception:
            self._tally.failures += 1

    def reset(self, measured: Sequence[float] | None = None) -> None:
        """Start an episode: forget the past, start from ``measured`` (normalised), else neutral.

        A latch, and being disengaged, survive it.

        Raises:
            SafetyError: a measured value that is not one finite number per actuator.
        """
        with self._lock:
            self.breakers.reset(measured)
            self._sent = self.breakers.reference
            self._plan.clear()
            self._intake.reset()
            self.model.reset()
            self._channels.reset()

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
            self._plan.clear()

    def disengage(self) -> None:
        """The fallback drives until `engage`. Any thread may call it."""
        with self._lock:
            self.breakers.disengage()

    def estop(self, pressed: bool = True) -> None:
        """Press or release the emergency stop; any thread, without waiting for a step that runs.

        The next action is the fallback's, also in a step that is under way. The stop stays latched
        after release, until `reset_latch` and then `engage`.
        """
        self.breakers.estop(pressed)

    def reset_latch(self, operator: str) -> None:
        """End LATCHED. Nothing moves before `engage`.

        Raises:
            SafetyError: no operator named, nothing latched, or a cause persists.
        """
        with self._lock:
            self.breakers.reset_latch(operator)

    def close(self) -> None:
        """Disengage for good. `act` still answers, with the fallback."""
        with self._lock:
            self._closed = True
            self.breakers.disengage()

    def stats(self) -> dict[str, Any]:
        """Counters as plain data, for reports; durations in ms over the last 32 768 steps."""
        with self._lock:
            return {
                **self._tally.report(self.breakers),
                "unknown_values": self._intake.unknown,
                "channel_failures": dict(self._channels.failures),
            }
