from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from tests.runtime.bench.doubles import FakeArm, FakeTimer, quiet_floor, recorded
from wmrt.runtime.bench.floor import Floor
from wmrt.runtime.bench.outcome import Row, Work, not_comparable, ratios, row_of
from wmrt.runtime.bench.rounds import Course

MS = 1_000_000


def row(
    durations: list[int],
    *,
    name: str = "native",
    threads: int = 1,
    work: Work | None = None,
    rate: int | None = None,
    deadline_ms: float | None = None,
    floor: Floor | None = None,
    **recording: Any,
) -> Row:
    arm = FakeArm(FakeTimer(), [1], name, threads)
    course = Course(
        arm,
        None if rate is None else Fraction(rate),
        len(durations),
        recorded(durations, **recording),
    )
    found = floor or quiet_floor((1, 2))
    return row_of(course, work or Work("net"), found, deadline_ms)


def test_figures_of_an_arm() -> None:
    figures = row([n * MS for n in range(1, 101)]).figures
    times = figures["step_ms"]
    assert (times["p50"], times["p90"], times["p99"], times["max"]) == (50, 90, 99, 100)
    assert (times["q1"], times["q3"]) == (25, 75)
    assert times["p999"] is None and times["jitter"] == 49
    # 1 MB at 100 GB/s are 10 us.
    assert figures["floor_ms"] == pytest.approx(0.01)
    assert figures["ratio_to_floor"] == pytest.approx(5000)
    assert figures["deadline"] is None and figures["deadline_misses"] is None
    assert figures["wake_up_ms"] is None and figures["enqueue_ms"] is None


def test_the_period_is_the_deadline_of_a_paced_arm_unless_one_is_given() -> None:
    durations = [MS] * 19 + [25 * MS]
    late = [2 * MS] + [0] * 19
    figures = row(durations, rate=50, late=late).figures
    assert figures["deadline"] == 20 and figures["deadline_misses"] == 1
    assert figures["rate_hz"] == 50 and figures["wake_up_ms"]["max"] == 2
    assert row(durations, rate=50, deadline_ms=30.0).figures["deadline_misses"] == 0
    assert row(durations, deadline_ms=0.5).figures["deadline_misses"] == 20
    tight = row(durations, rate=50, late=late, deadline_ms=2.5).figures
    assert tight["misses"]["causes"] == {"late wake-up": 1, "unknown": 1}


def test_a_missing_floor_is_missing() -> None:
    figures = row([MS] * 10, floor=Floor(None, (1,), "none")).figures
    assert figures["floor_ms"] is None and figures["ratio_to_floor"] is None
    assert figures["noise"]["stamp"] == "noisy"


def test_ratios_are_of_rounds_and_count_if_the_quartiles_are_apart() -> None:
    a = row([10, 10, 20, 20, 30, 30], rounds=3, name="a")
    b = row([20, 20, 40, 40, 60, 60], rounds=3, name="b")
    (pair,) = ratios([a, b])
    assert pair["median"] == 2.0 and pair["iqr"] == [2.0, 2.0]
    assert pair["arm"] == "b nvfp4, 1 thread" and pair["to"] == "a nvfp4, 1 thread"
    assert pair["comparable"] and not pair["differs"]  # 10 to 30 and 20 to 60 overlap
    slow = row([99, 99, 99, 99, 99, 99], rounds=3, name="b")
    assert ratios([a, slow])[0]["differs"] and ratios([slow, a])[0]["differs"]


def test_modes_are_not_mixed() -> None:
    rows = [row([MS] * 4), row([MS] * 4, rate=10), row([MS] * 4, name="b"), row([MS] * 4, rate=20)]
    assert [(p["arm"], p["mode"]) for p in ratios(rows)] == [("b nvfp4, 1 thread", "back-to-back")]


def test_work_that_is_not_the_same_is_not_compared() -> None:
    base = row([MS] * 4)
    other = row([MS] * 4, work=Work("other net"), name="b")
    (pair,) = ratios([base, other])
    assert not pair["comparable"] and pair["reason"] == "network net and other net"
    assert "median" not in pair and "iqr" not in pair
    gpu = row([MS] * 4, work=Work("net", device="cuda:0"))
    assert not_comparable(base, gpu) == "device cpu and cuda:0"


def test_threads_and_robots_are_varied_one_at_a_time_within_an_arm() -> None:
    base = row([MS] * 4)
    assert not_comparable(base, row([MS] * 4, threads=2)) is None
    assert not_comparable(base, row([MS] * 4, work=Work("net", batch=8))) is None
    both = row([MS] * 4, threads=2, work=Work("net", batch=8))
    assert not_comparable(base, both) == "threads 1 and 2 and batch 1 and 8"
    peer = row([MS] * 4, threads=2, name="peer")
    assert not_comparable(base, peer) == "threads 1 and 2 of native, peer"
    assert (
        not_comparable(base, replace(peer, course=replace(peer.course, arm=base.course.arm)))
        is None
    )
    assert not_comparable(base, row([MS] * 4, name="peer")) is None
    assert (
        base.label == "native nvfp4, 1 thread" and both.label == "native nvfp4, 2 threads, batch 8"
    )
