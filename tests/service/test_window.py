"""Percentiles and histograms of the last durations, against the plain way to compute them."""

from __future__ import annotations

import math
import random
import sys

import pytest

from wmrt.core.measure import P999_MIN_SAMPLES, summary
from wmrt.service.window import BINS_PER_DECADE, Window


@pytest.mark.parametrize("size", [1, 7, 300])
def test_it_is_the_summary_of_the_last_ones(size: int, seed: int) -> None:
    rng = random.Random(seed)
    window = Window(size)
    assert window.summary() == summary([])
    # Few different values, so that equal ones come and go.
    given = [round(rng.lognormvariate(0, 1), 1) for _ in range(3 * size + 2)]
    for count, ms in enumerate(given, 1):
        window.add(ms)
        assert window.summary() == summary(given[max(0, count - size) : count])
    assert list(window.ordered) == sorted(given[-size:])


def test_by_default_it_is_enough_for_the_rare_ones(seed: int) -> None:
    rng = random.Random(seed)
    window = Window()
    for _ in range(P999_MIN_SAMPLES - 1):
        window.add(rng.random())
    assert window.summary()["p999"] is None
    window.add(0.5)
    assert window.summary()["p999"] is not None


def test_every_duration_is_in_its_bin(seed: int) -> None:
    rng = random.Random(seed)
    window = Window(500)
    assert window.histogram()["counts"] == []
    given = [10.0 ** rng.uniform(-2, 3) for _ in range(400)] + [1.0, 10.0, 0.0]
    for ms in given:
        window.add(ms)
    told = window.histogram()
    assert told["per_decade"] == BINS_PER_DECADE and sum(told["counts"]) == len(given)
    expected: dict[int, int] = {}
    for ms in given:
        k = math.floor(BINS_PER_DECADE * math.log10(max(ms, 1e-4)))
        expected[k] = expected.get(k, 0) + 1
    got = {told["first"] + i: n for i, n in enumerate(told["counts"]) if n}
    assert got == expected


def test_it_keeps_no_objects(seed: int) -> None:
    rng = random.Random(seed)
    window = Window(2000)
    before = sys.getallocatedblocks()
    for _ in range(5000):
        window.add(rng.random())
    assert sys.getallocatedblocks() - before < 200
