"""The breakers: every action that leaves is finite, in its box, and within its rate limits.

Pure: no I/O, no clock of its own, no global state; the same calls give the same decisions bit for
bit. A control step is ``begin``, ``admit``, then ``decide``; ``guard`` does the three.

In OPEN the fallback drives. The policy is still asked whenever its input is fit, and its answers
are judged at levels 1 and 3; ``good_inputs`` good steps in a row lead to HALF_OPEN. There a range
trip, bad input or a lost majority opens again; a rate trip only restarts the count of clean steps;
a proposal within the full limits but beyond the reduced ones is clamped to those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from wmrt.core.errors import STOPPING
from wmrt.safety.consensus import vote
from wmrt.safety.decision import Decision, Proposal
from wmrt.safety.envelope import Envelope
from wmrt.safety.events import EventRing, Finding
from wmrt.safety.glance import Glance
from wmrt.safety.judge import Action, clamp_to_box, predicted_fault, range_fault
from wmrt.safety.limits import Limits
from wmrt.safety.machine import Machine
from wmrt.safety.table import PASSING, Cause, State

#: Findings of one input that are recorded one by one; the rest are dropped.
MAX_FINDINGS = 16
#: A smaller difference is the rounding of a proposal to float32 (6e-8 near 1), not a clamp.
ROUNDING = 1e-6

Fallback = Callable[[], Sequence[float]]


class Breakers:
    """The four levels and the fallback of one robot. Not to be shared by two controllers.

    Args:
        limits: what to enforce.
        robot: name for the record.
        events: capacity of the record.
        glance: recognise at once a step with which nothing is wrong. False takes the whole way
            every time, and decides the same, bit for bit.
    """

    def __init__(
        self, limits: Limits, *, robot: str = "robot", events: int = 4096, glance: bool = True
    ) -> None:
        self.limits = limits
        self._machine = Machine(limits, robot, events)
        self._envelope = Envelope(limits)
        self._glance = Glance(limits, self._machine, self._envelope) if glance else None
        self._names = limits.spec.names
        self._bounds = limits.state_bounds()
        self._estop = False
        self._before = State.CLOSED

    @property
    def state(self) -> State:
        return self._machine.state

    @property
    def engaged(self) -> bool:
        """Whether the policy's action may leave. False from `disengage` or a latch to `engage`."""
        return self._machine.engaged

    @property
    def reference(self) -> Action:
        """The last action sent; at the start the measured one or neutral. float32 values."""
        return self._envelope.reference

    @property
    def step(self) -> int:
        """Number of the current step, from 1; 0 before the first."""
        return self._machine.step

    @property
    def events(self) -> EventRing:
        return self._machine.events

    @property
    def stops(self) -> int:
        """How often the emergency stop has latched: presses that were acted on."""
        return self._machine.counts[Cause.ESTOP]

    def begin(self, now_ns: int) -> None:
        """Open a step at ``now_ns`` (monotonic nanoseconds)."""
        now_ns, machine = int(now_ns), self._machine
        dt = self._envelope.begin(now_ns)
        machine.begin(now_ns, max(dt, 0))
        self._before = machine.state
        if dt < 0:
            machine.fire(Cause.CLOCK, Finding("", "backwards", dt, 0))
        if self._estop:
            self._stop()

    def admit(self, faults: Sequence[Finding], notes: Sequence[Finding] = ()) -> bool:
        """Level 0: judge the input. True when the policy may be asked.

        Args:
            faults: each one makes the input unfit.
            notes: reported only.
        """
        for fault in faults[:MAX_FINDINGS]:
            self._machine.fire(Cause.INPUT, fault)
        for note in notes[:MAX_FINDINGS]:
            self._machine.fire(Cause.NOTE, note)
        return not faults

    def decide(
        self,
        proposal: Proposal | None,
        fallback: Fallback | None = None,
        votes: Sequence[Action | None] | None = None,
    ) -> Decision:
        """Levels 1 to 3, and what leaves.

        Args:
            proposal: the policy's answer; None when it was not asked.
            fallback: called when needed; gives the action to ramp to. Default neutral. One that
                raises or gives anything but finite numbers is recorded and neutral is used.
            votes: the other two channels' actions, None for a failed one; None for no vote.
        """
        if self._estop:
            self._stop()
        if votes is None and proposal is not None and self._glance is not None:
            decision = self._glance.decide(proposal, self._before)
            if decision is not None:
                return decision
        machine = self._machine
        chosen, source = (None, "") if proposal is None else self._choose(proposal, votes)
        if chosen is None or machine.state not in PASSING or not machine.engaged:
            action, source = self._ramp(fallback), "fallback"
        else:
            action, source = self._follow(chosen, source, fallback)
        late = proposal is not None and proposal.late
        machine.finish(chosen is not None and not machine.tripped and not late)
        machine.write(None if proposal is None else proposal.action, action)
        self._envelope.sent(action)
        return Decision(action, source, self._before, machine.state, frozenset(machine.tripped))

    def guard(
        self,
        now_ns: int,
        proposal: Proposal | None,
        faults: Sequence[Finding] = (),
        fallback: Fallback | None = None,
    ) -> Decision:
        """One whole step without channels."""
        self.begin(now_ns)
        return self.decide(proposal if self.admit(faults) else None, fallback)

    def emergency(self, error: BaseException) -> Decision:
        """The caller failed in the middle of a step: latch, and hold the last action.

        How far this step got is not certain, so neither it nor the next one may change anything.
        """
        machine = self._machine
        before = machine.state
        machine.fire(Cause.INTERNAL, Finding("", type(error).__name__[:80]))
        machine.finish(False)
        action = self._envelope.hold()
        machine.write(None, action)
        return Decision(action, "fallback", before, machine.state, frozenset(machine.tripped))

    def report(self, cause: Cause, finding: Finding) -> None:
        """Record in this step something the caller saw: a deadline, a failed channel."""
        self._machine.fire(cause, finding)

    def estop(self, pressed: bool = True) -> None:
        """Press or release the emergency stop. Any thread may call it; it takes no lock.

        A press latches, from the next `begin` or `decide` on, even if it is released before. A
        release unlatches nothing; it is needed before `reset_latch`.
        """
        if pressed:
            self._estop = True
        self._machine.estop_pressed = pressed

    def engage(self, operator: str, measured: Sequence[float] | None = None) -> None:
        """Let the policy drive again, from the measured action if given, else the last one sent.

        The fallback has been ramping that one to neutral since the policy was disengaged, so
        starting from it keeps the rate limit across the takeover.

        Raises:
            SafetyError: no operator named, LATCHED, or a measured value that is not finite.
        """
        start = None if measured is None else self._envelope.measured(measured)
        self._machine.engage(operator)
        if start is not None:
            self._envelope.start(start)

    def disengage(self) -> None:
        """The fallback drives until `engage`."""
        self._machine.disengage()

    def reset_latch(self, operator: str) -> None:
        """LATCHED to OPEN, disengaged. See `Machine.reset_latch` for what it refuses."""
        self._machine.reset_latch(operator)

    def reset(self, measured: Sequence[float] | None = None, *, heal: bool = True) -> None:
        """A new episode starts from the measured action (normalised), else neutral. Keeps a latch;
        and, unless it is to ``heal`` (another program goes on with the robot), every state.

        Raises:
            SafetyError: a measured value that is not one finite number per actuator.
        """
        rest = self.limits.rest
        self._envelope.start(rest if measured is None else self._envelope.measured(measured))
        self._machine.episode_reset(heal)

    def stats(self) -> dict[str, Any]:
        """Counters as plain data."""
        return self._machine.stats()

    def _stop(self) -> None:
        """Act on a press of the emergency stop: one press, one latch."""
        self._estop = False
        self._machine.fire(Cause.ESTOP)

    def _choose(
        self, proposal: Proposal, votes: Sequence[Action | None] | None
    ) -> tuple[Action | None, str]:
        """Levels 1 and 3: the action to follow, None to fall back, and where it comes from."""
        own, clamped = self._own(proposal)
        source = "clamped" if clamped else "planned" if proposal.late else "policy"
        if votes is None:
            return own, source
        ballot = (own, *(self._channel(action) for action in votes))
        verdict = vote(ballot, self.limits.agree)
        if verdict.cause is None:
            self._machine.agreed()
        else:
            out = "" if verdict.out is None else f"channel {verdict.out}"
            live = sum(action is not None for action in ballot)
            self._machine.disagreed(verdict.cause, Finding(out, "live", live, 2))
        return verdict.action, source if verdict.action == own else "consensus"

    def _own(self, proposal: Proposal) -> tuple[Action | None, bool]:
        """Level 1 on the policy's answer: its action in the box, and whether that changed it."""
        action, fault = proposal.action, proposal.fault
        if fault is None and action is not None:
            fault = self._beyond(action) or predicted_fault(proposal.predicted, self._bounds)
        if fault is not None:
            self._machine.range_trip(fault)
            return None, False
        if action is None:
            return None, False
        inside = clamp_to_box(action, self._envelope.full)
        return inside, self._clamped(Cause.RANGE_CLAMP, action, inside)

    def _channel(self, action: Action | None) -> Action | None:
        """A channel's vote inside the box; None if it is out of bounds."""
        if action is None or self._beyond(action) is not None:
            return None
        return clamp_to_box(action, self._envelope.full)

    def _beyond(self, action: Action) -> Finding | None:
        if len(action) != len(self._names):
            return Finding("action", "length", len(action), len(self._names))
        return range_fault(action, self._envelope.full, self._names)

    def _follow(self, chosen: Action, source: str, fallback: Fallback | None) -> tuple[Action, str]:
        """Level 2 on an action within the box: what leaves, and its source."""
        fault = self._envelope.fault(chosen)
        if fault is not None:
            self._machine.fire(Cause.RATE, fault)
            return self._ramp(fallback), "blocked"
        action = self._envelope.move(chosen, self._machine.state is State.HALF_OPEN)
        return action, "clamped" if self._clamped(Cause.RATE_CLAMP, chosen, action) else source

    def _clamped(self, cause: Cause, given: Action, made: Action) -> bool:
        """Record the first value that was changed; False if none was."""
        for name, before, after in zip(self._names, given, made, strict=True):
            if abs(before - after) > ROUNDING:
                self._machine.fire(cause, Finding(name, "clamped", before, after))
                return True
        return False

    def _ramp(self, fallback: Fallback | None) -> Action:
        """The last action moved towards the fallback's by what the rate limits allow."""
        goal = self.limits.rest if fallback is None else self._goal(fallback)
        return self._envelope.move(goal, self._machine.state is State.HALF_OPEN)

    def _goal(self, fallback: Fallback) -> Action:
        """Ask the fallback; neutral when it fails."""
        try:
            goal = tuple(float(value) for value in fallback())
            if len(goal) == len(self._names) and all(map(math.isfinite, goal)):
                return goal
            finding = Finding("", "value", str(goal[:8])[:80], "one finite number per actuator")
        except STOPPING:
            raise
        except BaseException as error:  # a fallback that fails must not stop the loop
            finding = Finding("", type(error).__name__[:80])
        self._machine.fire(Cause.FALLBACK, finding)
        return self.limits.rest
