"""The state machine: looks up `wmrt.safety.table.RULES`, counts, and writes the record."""

from __future__ import annotations

from collections import deque
from typing import Any

from wmrt.core.errors import SafetyError
from wmrt.safety.events import Event, EventRing, Finding
from wmrt.safety.limits import Limits
from wmrt.safety.table import RULES, Cause, Level, State

_NOTHING = Finding("", "")
_OPEN, _HALF_OPEN = State.OPEN, State.HALF_OPEN
#: Causes of a latch. Each one must be gone before an operator may reset.
LATCHING = frozenset({Cause.OPENED_REPEATEDLY, Cause.ESTOP, Cause.INTERNAL})


class Machine:
    """State, streaks and counters of one robot's breakers.

    Time is counted by adding up the positive steps of the clock: a clock that jumps back neither
    shortens nor stretches a window.

    Attributes:
        state: the current state.
        engaged: whether the policy's action may leave at all.
        step: number of the current control step, from 1.
        trips: steps on which each of the four levels tripped.
        counts: events by cause.
        steps_in: steps that ended in each state.
        pending: what happened in this step and is not in the record yet.
        events: the record.
    """

    def __init__(self, limits: Limits, robot: str, capacity: int) -> None:
        self._limits = limits
        self._robot = robot
        self._time = 0
        self._trip_times: deque[int] = deque(maxlen=limits.trip_limit)
        self._open_times: deque[int] = deque(maxlen=limits.latch_opens)
        self._streak = 0  # good steps while open or latched, clean ones while half open
        self._agreed = 0
        self._degraded = False
        self.pending: list[tuple[Cause, Finding, State, State]] = []
        self.state = State.CLOSED
        self.engaged = True
        self.estop_pressed = False
        self.latched_by: set[Cause] = set()
        self.step = 0
        self.now_ns = 0
        self.tripped: set[Level] = set()
        self.trips = dict.fromkeys((Level.VALIDITY, Level.RANGE, Level.RATE, Level.CONSENSUS), 0)
        self.counts = dict.fromkeys(Cause, 0)
        self.steps_in = dict.fromkeys(State, 0)
        self.events = EventRing(capacity)

    def begin(self, now_ns: int, elapsed_ns: int) -> None:
        """Open a control step, ``elapsed_ns`` (0 or more) after the last one."""
        self.now_ns = now_ns
        self._time += elapsed_ns
        self.step += 1
        self.tripped.clear()

    def fire(self, cause: Cause, finding: Finding = _NOTHING) -> None:
        """Something happened: count it, move, note it. Follow-up causes fire from here too."""
        rule = RULES[cause]
        before, after = self.state, rule.to[self.state]
        self.counts[cause] += 1
        self.pending.append((cause, finding, before, after))
        if rule.trip and rule.level not in self.tripped:
            self.tripped.add(rule.level)
            self.trips[rule.level] += 1
        if cause in LATCHING:
            self.latched_by.add(cause)
            self.engaged = False
        if after is not before:
            self.state = after
            self._streak = 0
            if rule.opening and self._often(self._open_times, self._limits.latch_window):
                self.fire(Cause.OPENED_REPEATEDLY, Finding("", "openings", len(self._open_times)))

    def range_trip(self, finding: Finding) -> None:
        """A level 1 trip, and what follows from several within the window."""
        self.fire(Cause.RANGE, finding)
        if self._often(self._trip_times, self._limits.trip_window):
            self.fire(Cause.RANGE_REPEATED, Finding("", "trips", len(self._trip_times)))

    def _often(self, times: deque[int], window: float) -> bool:
        """Note the present in ``times``; True when all of its places lie within ``window`` s."""
        times.append(self._time)
        return len(times) == times.maxlen and self._time - times[0] <= round(window * 1e9)

    def agreed(self) -> None:
        """A vote in which all three channels agreed. Enough of them in a row end DEGRADED."""
        self._agreed += 1
        if self._degraded and self._agreed >= self._limits.heal_steps:
            self._degraded = False
            self.fire(Cause.HEALED, Finding("", "votes", self._agreed))

    def disagreed(self, cause: Cause, finding: Finding) -> None:
        """A vote with a channel out (`Cause.PAIR`) or without a majority."""
        self._agreed = 0
        self._degraded = True
        self.fire(cause, finding)

    def finish(self, good: bool) -> None:
        """Judge the step as a whole: ``good`` steps in a row lead out of OPEN and HALF_OPEN."""
        self._streak = self._streak + 1 if good else 0
        if self.state is _OPEN:
            if self.engaged and self._streak >= self._limits.good_inputs:
                self.fire(Cause.GOOD, Finding("", "steps", self._streak))
        elif self.state is _HALF_OPEN and self._streak >= self._limits.clean_steps:
            cause = Cause.CLEAN_DEGRADED if self._degraded else Cause.CLEAN
            self.fire(cause, Finding("", "steps", self._streak))
        self.steps_in[self.state] += 1

    def write(
        self, action_in: tuple[float, ...] | None, action_out: tuple[float, ...] | None
    ) -> None:
        """Move what was noted to the record, now that the action of the step is known."""
        for cause, finding, before, after in self.pending:
            self.events.append(
                Event(
                    self.now_ns, self._robot, self.step, RULES[cause].level, cause, *finding,
                    action_in, action_out, before, after, self._limits.hash,
                )
            )  # fmt: skip
        self.pending.clear()

    def engage(self, operator: str) -> None:
        """Let the policy drive again. Good steps count from here.

        Raises:
            SafetyError: no operator named, or LATCHED.
        """
        _require_operator(operator, "engage")
        if self.state is State.LATCHED:
            raise SafetyError(f"engage: latched by {self._latch_names()}; reset the latch first")
        self.engaged = True
        self._streak = 0
        self.fire(Cause.ENGAGE, Finding("", "operator", operator[:80]))
        self.write(None, None)

    def disengage(self) -> None:
        """Take the policy's hands off; the fallback drives."""
        self.engaged = False
        self.fire(Cause.DISENGAGE)
        self.write(None, None)

    def reset_latch(self, operator: str) -> None:
        """LATCHED -> OPEN, still disengaged: a reset by hand does not itself start motion.

        Raises:
            SafetyError: no operator named, not latched, or a cause persists: the emergency stop is
                still pressed, or fewer than ``good_inputs`` good steps in a row since.
        """
        _require_operator(operator, "reset")
        if self.state is not State.LATCHED:
            raise SafetyError(f"reset: nothing is latched, the state is {self.state.value}")
        if self.estop_pressed:
            raise SafetyError("reset: the emergency stop is still pressed; release it first")
        need = self._limits.good_inputs
        if self.latched_by - {Cause.ESTOP} and self._streak < need:
            raise SafetyError(
                f"reset: latched by {self._latch_names()}, and only the last {self._streak} steps "
                f"were good; it takes {need}"
            )
        self.latched_by.clear()
        self._open_times.clear()
        self._trip_times.clear()
        self.fire(Cause.OPERATOR_RESET, Finding("", "operator", operator[:80]))
        self.write(None, None)

    def episode_reset(self, heal: bool) -> None:
        """A new episode: closed again unless latched. The history of openings stays.

        Without ``heal`` whoever asks is new, and the robot's trouble is not: state and history
        stay, and good, clean or unanimous steps are counted anew.
        """
        self.fire(Cause.EPISODE_RESET if heal else Cause.SESSION)
        self._streak = self._agreed = 0
        if heal:
            self._trip_times.clear()
            if self.state is not State.LATCHED:
                self._degraded = False
        self.write(None, None)

    def stats(self) -> dict[str, Any]:
        """Counters as plain data."""
        return {
            "steps": self.step,
            "state": self.state.value,
            "engaged": self.engaged,
            "trips": {level.name.lower(): n for level, n in self.trips.items()},
            "counts": {cause.value: n for cause, n in self.counts.items()},
            "steps_in": {state.value: n for state, n in self.steps_in.items()},
            "events": self.events.total,
            "config": self._limits.hash,
        }

    def _latch_names(self) -> str:
        return ", ".join(sorted(cause.value for cause in self.latched_by))


def _require_operator(operator: str, action: str) -> None:
    if not isinstance(operator, str) or not operator.strip():
        raise SafetyError(f"{action}: an operator's name is needed, got {operator!r}")
