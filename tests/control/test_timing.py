"""Durations in a ring: which are held, and what a summary of them takes."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from wmrt.control.timing import Durations
from wmrt.core import measure


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250, 20_000])
def test_a_summary_is_that_of_the_last_ones(count: int, seed: int) -> None:
    draw, held = random.Random(seed), Durations(100 if count < 1000 else 15_000)
    given = [draw.randrange(10**9) for _ in range(count)]
    for ns in given:
        held.add(ns)
    last = given[-100 if count < 1000 else -15_000 :]
    assert held.values() == last and held.total == count
    found = held.summary_ms()
    assert found == measure.summary([ns * 1e-6 for ns in last])
    assert all(type(value) in (int, float, type(None)) for value in found.values())


def test_a_summary_makes_no_object_of_each_duration(seed: int) -> None:
    draw, held = random.Random(seed), Durations()
    for _ in range(40_000):
        held.add(draw.randrange(10**5, 10**9))
    held.summary_ms()
    tracemalloc.start()
    try:
        held.summary_ms()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * 8 * (1 << 15)  # copies of the ring; objects of the durations take 14 of them
