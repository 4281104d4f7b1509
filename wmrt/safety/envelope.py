"""Where the next action may lie: box, last action sent, and what the rate limits allow from there.

What may leave is strict: at most the rate times the time since the last action, where a clock that
stands or runs back allows nothing and no more than ``step_periods`` periods ever count. Whether a
proposal is a rate fault is judged with tolerance: per step against the nominal period, and by the
clock over the last two commands, so that the short interval that follows a long one is no fault but
a flooding sender is (opendbc's torque limits do the same over 250 ms).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from wmrt.core.errors import SafetyError
from wmrt.safety.events import Finding, describe
from wmrt.safety.float32 import narrow
from wmrt.safety.judge import Action, clamp_to_box, rate_fault, reach
from wmrt.safety.limits import Limits

#: More than what rounding makes of the limits of two steps, some 1e-15 of them.
ROUNDING = 1e-12


class Envelope:
    """The reachable set of one robot's next action.

    Attributes:
        reference: the last action sent; at the start the measured one or neutral. float32 values.
        full, half: the boxes of normal operation and of HALF_OPEN.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._longest = limits.step_periods * limits.period  # s that one command may count
        self._step_deltas = limits.deltas(self._longest)
        self.full = limits.boxes(1.0)
        self.half = limits.boxes(limits.half_open_scale)
        self._certain = limits.wall_tolerance >= ROUNDING
        self._floats = struct.Struct(f"<{len(limits.spec)}f")
        self._rows = tuple(
            (max(b.low, b.tolerated_low), min(b.high, b.tolerated_high), *rates)
            for b, rates in zip(self.full, limits.rates, strict=True)
        )
        self.start(limits.rest)

    def start(self, reference: Action) -> None:
        """Forget the past: the next command is the first one after ``reference``."""
        self.reference = self._older = reference
        self._now_ns = 0
        self._last_ns: int | None = None
        self._unsure = False
        self._dt_ns = self._gap_ns = 0  # since the last command; between that and the one before

    def begin(self, now_ns: int) -> int:
        """Take the time of this command; nanoseconds since the last one, negative if it ran back.

        The first command after a start counts one period; the first one after `hold` none.
        """
        self._now_ns = now_ns
        if self._last_ns is None:
            dt = 0 if self._unsure else self._limits.period_ns
        else:
            dt = now_ns - self._last_ns
        self._dt_ns = max(dt, 0)
        return dt

    def fault(self, action: Action) -> Finding | None:
        """Level 2: the first value that changes too fast, beyond the tolerance."""
        limits, names = self._limits, self._limits.spec.names
        elapsed = min((self._dt_ns + self._gap_ns) * 1e-9, 2.0 * self._longest)
        return rate_fault(
            action, self.reference, self._step_deltas, limits.rate_tolerance, "step", names
        ) or rate_fault(
            action, self._older, limits.deltas(elapsed), limits.wall_tolerance, "clock", names
        )

    def move(self, goal: Sequence[float], half: bool) -> Action:
        """The allowed action nearest to a finite ``goal``; within the reduced limits if ``half``.

        If the reference is outside the reduced box, the result moves into it at the reduced rate.
        """
        seconds = min(self._dt_ns * 1e-9, self._longest)
        if half:
            seconds *= self._limits.half_open_scale
        inside = clamp_to_box(goal, self.half if half else self.full)
        return reach(inside, self.reference, self._limits.deltas(seconds))

    def pass_through(self, action: Action | None) -> bool:
        """`sent`, if ``action`` leaves as it is: floats within the tolerated and the full box, in
        which `fault` finds nothing and of which `move`, not halved, makes the same. True is
        certain; else nothing has changed.

        What `move` allows, no rate fault forbids. The limit of one step is the rate times
        ``step_periods`` periods, and `move` allows the rate times that or less. The last two
        commands moved by the rate times their own times or less, whoever made them, so both
        together by no more than the clock allows, rounding aside.
        """
        if not self._certain or type(action) is not tuple or len(action) != len(self._rows):
            return False
        seconds = self._dt_ns * 1e-9
        twice = 2.0 * (self._longest if seconds > self._longest else seconds)
        for value, last, (low, high, up, down, span) in zip(
            action, self.reference, self._rows, strict=True
        ):
            if type(value) is not float or not low <= value <= high:
                return False
            step = value - last
            if step > up * (twice / span) or -step > down * (twice / span):
                return False
        if self._floats.unpack(self._floats.pack(*action)) != action:
            return False
        self._older, self.reference = self.reference, action  # as `sent`, without a call
        self._gap_ns, self._last_ns = self._dt_ns, self._now_ns
        return True

    def sent(self, action: Action) -> None:
        """The action leaves: the next one is measured from it."""
        self._older, self.reference = self.reference, action
        self._gap_ns = self._dt_ns
        self._last_ns = self._now_ns

    def hold(self) -> Action:
        """The reference leaves again, at an unknown time, so the next command may not differ."""
        self._older = self.reference
        self._dt_ns = self._gap_ns = 0
        self._last_ns, self._unsure = None, True
        return self.reference

    def measured(self, values: Sequence[float]) -> Action:
        """A measured actuator position, brought into the box, as float32 values.

        Raises:
            SafetyError: not one finite number per actuator.
        """
        names = self._limits.spec.names
        try:
            plain = tuple(float(value) for value in values)
        except (TypeError, ValueError, OverflowError):
            plain = ()
        if len(plain) != len(names) or not all(map(math.isfinite, plain)):
            raise SafetyError(
                f"measured action {describe(values)}: needs {len(names)} finite numbers, "
                f"normalised, for {list(names)}"
            )
        inside = clamp_to_box(plain, self.full)
        return tuple(narrow(b.low, b.high, v) for b, v in zip(self.full, inside, strict=True))
