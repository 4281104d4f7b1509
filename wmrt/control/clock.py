"""A clock for simulators."""

from __future__ import annotations

from wmrt.control import settings


class StepClock:
    """Every reading is one period after the last: for loops that do not run in real time.

    A simulator that steps faster than real time would look like a flooding sender to the rate
    limits by the clock. Give ``Controller(..., clock=StepClock(period))``; it reads its clock once
    per step.

    Raises:
        SafetyError: a period that is not a finite number of seconds above 0.
    """

    def __init__(self, period: float) -> None:
        self._period_ns = round(settings.seconds("period", period) * 1e9)
        self._now = 0

    def now_ns(self) -> int:
        self._now += self._period_ns
        return self._now
