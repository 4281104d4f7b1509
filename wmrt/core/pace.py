"""When a step begins: at its tick of a schedule that does not drift, late ones included."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol

from wmrt.core.errors import UsageError

#: The last part of a wait is spun: a sleep ends some 60 us late, more on a core that was idle.
SPIN_NS = 500_000


class Timer(Protocol):
    """A clock that can wait."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""

    def sleep_ns(self, duration: int) -> None:
        """Let at least ``duration`` nanoseconds pass; a real one oversleeps."""


class SystemTimer:
    """CLOCK_MONOTONIC of the machine."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_ns(self, duration: int) -> None:
        time.sleep(duration / 1e9)


@dataclass(frozen=True)
class Schedule:
    """Ticks at ``start_ns + n / rate``, counted in integers: tick 10^9 is as exact as tick 1.

    ``rate`` in Hz, above 0; a float is taken for the decimal it was written as.
    """

    start_ns: int
    rate: Fraction

    def tick(self, index: int) -> int:
        """Time of tick ``index`` in nanoseconds, rounded down."""
        return self.start_ns + index * 1_000_000_000 * self.rate.denominator // self.rate.numerator

    def first_from(self, now_ns: int) -> int:
        """Index of the first tick that is not before ``now_ns``, at least 0."""
        passed = max(now_ns - self.start_ns, 0) * self.rate.numerator
        index = -(-passed // (1_000_000_000 * self.rate.denominator))
        return index if self.tick(index) >= now_ns else index + 1


def rate_of(hertz: float) -> Fraction:
    """A rate as a fraction of small numbers: 0.1 Hz is 1/10. `UsageError` unless it is above 0."""
    if not 0 < hertz < float("inf"):
        raise UsageError(f"a rate is above 0 Hz, got {hertz:g}")
    return Fraction(repr(float(hertz)))


def wait_until(timer: Timer, tick_ns: int) -> int:
    """Sleep until shortly before, spin the rest; returns the time it is then."""
    left = tick_ns - timer.now_ns()
    if left > SPIN_NS:
        timer.sleep_ns(left - SPIN_NS)
    now = timer.now_ns()
    while now < tick_ns:
        now = timer.now_ns()
    return now


class Tick(NamedTuple):
    """The beginning of a paced step.

    Attributes:
        due: its time by the schedule, nanoseconds.
        begin: when it really begins.
        skipped: ticks that were given up since the step before.
    """

    due: int
    begin: int
    skipped: int


class Pacer:
    """Begins steps at the ticks of a schedule, and keeps its phase when one runs over.

    A step that ends after the next tick, but by no more than ``grace`` of the period, is followed
    at once: the next step begins late, and the ones after catch up. Only beyond that are ticks
    given up. Without grace, steps that take 1% too long lose every second cycle
    (ros2_control#2529); with half a period, one in fifty.

    Args:
        rate: in Hz.
        lead_ns: from now to the first tick.
        grace: in periods, 0 to 1.
    """

    def __init__(
        self, timer: Timer, rate: Fraction, lead_ns: int = 0, grace: Fraction = Fraction(0)
    ) -> None:
        if not 0 <= grace <= 1:
            raise UsageError(f"grace is 0 to 1 periods, got {float(grace):g}")
        self._timer = timer
        self._schedule = Schedule(timer.now_ns() + lead_ns, rate)
        self._grace_ns = int(grace / rate * 1_000_000_000)
        self._next = 0

    def wait(self) -> Tick:
        """Until the next step is to begin."""
        wanted = self._next
        tick = max(wanted, self._schedule.first_from(self._timer.now_ns() - self._grace_ns))
        due = self._schedule.tick(tick)
        self._next = tick + 1
        return Tick(due, wait_until(self._timer, due), tick - wanted)
