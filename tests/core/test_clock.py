from __future__ import annotations

import time

from wmrt.core.clock import ManualClock, SystemClock


def test_system_clock_is_the_monotonic_clock() -> None:
    before = time.monotonic_ns()
    now = SystemClock().now_ns()
    assert before <= now <= time.monotonic_ns()


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(5)
    assert clock.now_ns() == clock.now_ns() == 5
    clock.advance(0.1)
    assert clock.now_ns() == 100_000_005
    clock.advance(-0.2)
    assert clock.now_ns() == -99_999_995
