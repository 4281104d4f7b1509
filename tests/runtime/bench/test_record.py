from __future__ import annotations

import mmap
from fractions import Fraction

import pytest

from tests.runtime.bench.doubles import FakeArm, FakeTimer, FakeUsage
from wmrt.runtime.bench.record import (
    LEAD_NS,
    Block,
    Recording,
    Usage,
    process_usage,
    record_block,
)

MS = 1_000_000


def test_back_to_back_counts_nothing_before_it_settled() -> None:
    timer = FakeTimer(look=0)
    arm = FakeArm(timer, [50, 40, 10, 11, 12])
    recording = Recording(3)
    record_block(arm, Block(4, 3, settle=2), recording, timer, FakeUsage())
    assert list(recording.column("duration")) == [10, 11, 12]
    assert list(recording.column("begin")) == [90, 100, 111]
    assert set(recording.column("late")) == set(recording.column("skipped")) == {0}
    assert recording.rounds() == {4: [10, 11, 12]}


def test_paced_steps_begin_on_their_ticks() -> None:
    timer = FakeTimer(look=10)
    arm = FakeArm(timer, [1 * MS, 9 * MS, 2 * MS])
    recording = Recording(4)
    record_block(arm, Block(0, 4, settle=1, rate=Fraction(100)), recording, timer, FakeUsage())
    first = recording.column("begin")[0] - recording.column("late")[0]
    begins = [b - first for b in recording.column("begin")]
    assert begins == pytest.approx([0, 10 * MS, 20 * MS, 30 * MS], abs=20)
    assert max(recording.column("late")) < 20
    assert set(recording.column("skipped")) == {0}
    assert first == pytest.approx(LEAD_NS + 10 * MS, abs=20)


def test_a_step_that_runs_over_skips_ticks_and_the_schedule_stays() -> None:
    timer = FakeTimer(look=10)
    arm = FakeArm(timer, [1 * MS, 25 * MS, 1 * MS])
    recording = Recording(4)
    record_block(arm, Block(0, 4, settle=0, rate=Fraction(100)), recording, timer, FakeUsage())
    due = [
        b - late
        for b, late in zip(recording.column("begin"), recording.column("late"), strict=True)
    ]
    assert [d - due[0] for d in due] == [0, 10 * MS, 40 * MS, 50 * MS]
    assert list(recording.column("skipped")) == [0, 0, 2, 0]


def test_an_oversleep_is_a_late_wake_up() -> None:
    timer = FakeTimer(look=10, oversleep=800_000)
    arm = FakeArm(timer, [1 * MS])
    recording = Recording(2)
    record_block(arm, Block(0, 2, settle=0, rate=Fraction(100)), recording, timer, FakeUsage())
    # 0.5 ms are left for spinning, so 0.3 of the 0.8 ms are late.
    assert list(recording.column("late")) == pytest.approx([300_000] * 2, abs=100)


def test_disturbances_belong_to_the_step_they_fell_into() -> None:
    timer = FakeTimer()
    usage = FakeUsage([Usage(7, 7, 7), Usage(0, 0, 0), Usage(2, 1, 3)])
    recording = Recording(2)
    record_block(FakeArm(timer, [5]), Block(0, 2, settle=1), recording, timer, usage)
    columns = [list(recording.column(c)) for c in ("switches", "major_faults", "minor_faults")]
    assert columns == [[0, 2], [0, 1], [0, 3]]


def test_segments_are_read_after_every_step() -> None:
    timer = FakeTimer()
    parts = iter([(1, 2), (3, 4), (5, 6)])
    recording = Recording(3, ("encode", "network"), lambda: next(parts))
    record_block(FakeArm(timer, [5]), Block(0, 3, settle=0), recording, timer, FakeUsage())
    assert recording.segments == ("encode", "network")
    assert list(recording.segment("network")) == [2, 4, 6]


def test_a_recording_does_not_grow() -> None:
    recording = Recording(1)
    recording.add((0,) * 8)
    with pytest.raises(IndexError):
        recording.add((0,) * 8)


def test_the_processes_own_counters_go_up() -> None:
    before = process_usage()
    with mmap.mmap(-1, 1 << 23) as fresh:  # memory of the heap may have been touched before
        fresh[::4096] = b"1" * (len(fresh) // 4096)
        assert process_usage().minor_faults > before.minor_faults
