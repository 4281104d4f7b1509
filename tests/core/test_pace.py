from __future__ import annotations

import random
from fractions import Fraction

import pytest

from tests.runtime.bench.doubles import FakeTimer
from wmrt.core.errors import UsageError
from wmrt.core.pace import SPIN_NS, Pacer, Schedule, SystemTimer, rate_of, wait_until


@pytest.mark.parametrize("hertz", [0.1, 1 / 3, 3.0, 30.0, 59.94, 500.0, 1000.0])
def test_ticks_do_not_drift(hertz: float) -> None:
    rate = rate_of(hertz)
    schedule = Schedule(17, rate)
    for index in (0, 1, 10**6, 10**9):
        exact = 17 + Fraction(index * 10**9) / rate
        assert schedule.tick(index) == exact.__floor__()


def test_the_first_tick_from_a_time(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(300):
        rate = Fraction(draw.randint(1, 5000), draw.randint(1, 50))
        schedule = Schedule(draw.randint(0, 10**12), rate)
        now = draw.randint(0, 2 * 10**12)
        index = schedule.first_from(now)
        assert schedule.tick(index) >= now or index == 0
        assert index == 0 or schedule.tick(index - 1) < now
    assert schedule.first_from(schedule.tick(7)) == 7


@pytest.mark.parametrize("hertz", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none(hertz: float) -> None:
    with pytest.raises(UsageError, match="above 0"):
        rate_of(hertz)


def test_a_wait_sleeps_until_shortly_before_and_spins_the_rest() -> None:
    timer = FakeTimer(oversleep=60_000, look=100)
    begin = wait_until(timer, 10_000_000)
    assert 10_000_000 <= begin < 10_000_200
    assert timer.slept == [10_000_000 - SPIN_NS - 100]


def test_a_short_wait_does_not_sleep_and_a_late_one_does_not_wait() -> None:
    timer = FakeTimer(look=50)
    assert wait_until(timer, SPIN_NS) >= SPIN_NS and timer.slept == []
    timer = FakeTimer(start=9_000)
    assert wait_until(timer, 5_000) == 9_002 and timer.slept == []


def test_an_oversleep_is_seen_as_a_late_beginning() -> None:
    timer = FakeTimer(oversleep=3_000_000)
    assert wait_until(timer, 10_000_000) == pytest.approx(12_500_000, abs=10)


def test_the_machines_clock_waits_at_least_as_long() -> None:
    timer = SystemTimer()
    begin = timer.now_ns()
    assert wait_until(timer, begin + 2_000_000) >= begin + 2_000_000


def paced(durations: list[int], grace: Fraction) -> tuple[list[int], list[int], int]:
    """Steps of so many microseconds at 1 kHz: their ticks, lateness in microseconds, skips."""
    timer = FakeTimer(look=100)
    pacer = Pacer(timer, Fraction(1000), 1_000_000, grace)
    ticks, late, skipped = [], [], 0
    for duration in durations:
        due, begin, gone = pacer.wait()
        ticks.append(due // 1_000_000 - 1)
        late.append(round((begin - due) / 1_000))
        skipped += gone
        timer.now += duration * 1_000
    return ticks, late, skipped


def test_a_small_overrun_loses_no_cycle() -> None:
    ticks, late, skipped = paced([500, 1200, 500, 500], Fraction(1, 2))
    assert (ticks, late, skipped) == ([0, 1, 2, 3], [0, 0, 200, 0], 0)
    assert paced([500, 1200, 500, 500], Fraction(0))[2] == 1
    assert paced([500, 1490, 500], Fraction(1, 2))[1:] == ([0, 0, 490], 0)
    assert paced([500, 1510, 500], Fraction(1, 2))[1:] == ([0, 0, 0], 1)


def test_steps_that_always_run_over_lose_what_they_must() -> None:
    assert paced([1010] * 1000, Fraction(1, 2))[2] == pytest.approx(10, abs=10)
    assert paced([1010] * 1000, Fraction(0))[2] == 999


def test_a_long_overrun_gives_up_the_ticks_it_ran_over() -> None:
    ticks, late, skipped = paced([500, 3700, 500, 500], Fraction(1, 2))
    assert (ticks, late, skipped) == ([0, 1, 5, 6], [0, 0, 0, 0], 3)


def test_no_more_than_a_period_of_grace() -> None:
    for wrong in (Fraction(-1, 10), Fraction(11, 10)):
        with pytest.raises(UsageError, match="grace is 0 to 1 periods"):
            Pacer(FakeTimer(), Fraction(1000), grace=wrong)
