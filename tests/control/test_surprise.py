"""The three sums of one column, against the same written out by hand."""

from __future__ import annotations

import math
import random

import pytest

from wmrt.control.surprise import ALLOWANCE, CLIP, KINDS, LINGER, ColumnLimits, ColumnSums

LOW, HIGH = -10.0, 10.0


def sums(scale: float = 0.5, **limits: float) -> ColumnSums:
    return ColumnSums(ColumnLimits(scale, **limits), LOW, HIGH, 2)


def test_the_sums_of_a_random_stream(seed: int) -> None:
    rng = random.Random(seed)
    column, scale = sums(), 0.5
    rise = fall = frozen = 0.0
    last = None
    for _ in range(500):
        value = last if last is not None and rng.random() < 0.3 else rng.uniform(-11, 11)
        expected = value + rng.gauss(0.0, 1.5)
        column.see(value, expected)
        value = min(max(round(value, 2), LOW), HIGH)
        error = min(max((value - expected) / scale, -CLIP), CLIP)
        rise = max(0.0, rise + error - ALLOWANCE)
        fall = max(0.0, fall - error - ALLOWANCE)
        frozen = frozen + abs(error) if value == last and LOW < value < HIGH else 0.0
        assert (column.rise, column.fall, column.frozen) == (rise, fall, frozen)
        last = value


def test_usual_differences_add_up_to_nothing() -> None:
    column = sums()
    for n in range(1_000):
        column.see(0.01 * n % 3, 0.01 * n % 3 + 0.5 * (-1) ** n)
    assert (column.rise, column.fall, column.frozen) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("bias", "kind"), [(0.6, "rise"), (-0.6, "fall")])
def test_a_drift_adds_up(bias: float, kind: str) -> None:
    column = sums(rise=4.1, fall=4.1, frozen=4.1)
    for n in range(30):
        value = 0.1 * n
        column.see(value, value - bias)
        # 1.2 scales a step less the allowance of 1: past 4.1 in the 21st step
        assert (column.worst()[0] > 1.0) is (n >= 20), n
    assert column.worst()[1] == kind


def test_one_jump_is_clipped() -> None:
    column = sums(rise=3.5, fall=3.5, frozen=3.5)
    column.see(9.0, -9.0)
    assert column.rise == CLIP - ALLOWANCE and column.worst()[0] < 1.0


def test_a_frozen_reading_is_found_and_a_moving_one_is_not() -> None:
    column = sums(rise=99.0, fall=99.0, frozen=3.0)
    for n in range(20):
        column.see(1.0, 1.0 + 0.4 * (-1) ** n)  # either way; no drift
        assert (column.worst() > (1.0, "frozen")) is (n >= 4)
    column.see(1.01, 1.41)
    assert column.frozen == 0.0


@pytest.mark.parametrize("value", [LOW, HIGH, LOW - 5, HIGH + 5])
def test_a_reading_at_an_end_of_its_range_is_not_frozen(value: float) -> None:
    column = sums(frozen=1.0)
    for _ in range(10):
        column.see(value, 0.0)
    assert column.frozen == 0.0


def test_readings_that_round_alike_are_one() -> None:
    column = sums()
    column.see(1.0, 1.0)
    column.see(1.004, 3.0)
    assert column.frozen == CLIP


def test_what_was_too_large_is_forgotten_in_time() -> None:
    column = sums(rise=5.0, fall=5.0, frozen=5.0)
    for n in range(100):
        column.see(0.01 * n, -9.0)
    assert column.rise == 5.0 + LINGER * ALLOWANCE
    for n in range(11):
        assert column.worst()[0] > 1.0 or n > 9
        column.see(0.02 * n, 0.02 * n)
    assert column.worst()[0] < 1.0


def test_reset() -> None:
    column = sums(rise=1.0)
    column.see(2.0, -2.0)
    column.reset()
    assert column.worst()[0] == 0.0
    column.see(2.0, 2.4)
    assert column.frozen == 0.0  # there is no reading before


def test_limits_of_nothing_are_none() -> None:
    assert [getattr(ColumnLimits(1.0), kind) for kind in KINDS] == [math.inf] * 3
