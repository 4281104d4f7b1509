"""When a step begins: at once, or at its tick of a schedule that does not drift."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

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
