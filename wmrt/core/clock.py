"""Clocks. Control code never reads the wall clock; it is handed one of these."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in nanoseconds."""

    def now_ns(self) -> int: ...


class SystemClock:
    """CLOCK_MONOTONIC of the machine."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class ManualClock:
    """A clock that moves only when told; may be moved backwards to test faults."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now = start_ns

    def now_ns(self) -> int:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += round(seconds * 1e9)
