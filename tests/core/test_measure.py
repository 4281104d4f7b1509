from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from wmrt.core.measure import (
    P999_MIN_SAMPLES,
    longest_streak,
    mean_ci95,
    median,
    percentile,
    quartiles,
    relative_ci95,
    slope,
    spread,
    student_t95,
    summary,
)


def nearest_rank(ordered: list[float], q: str) -> float:
    """The definition, in exact arithmetic: the smallest sample with at least q% at or below it."""
    need = Fraction(q) * len(ordered) / 100
    return next(x for i, x in enumerate(ordered, start=1) if i >= need)


@pytest.mark.parametrize("q", ["50", "90", "99", "99.9", "100"])
def test_percentile_is_the_nearest_rank(q: str, seed: int) -> None:
    draw = random.Random(seed)
    for n in (1, 2, 9, 10, 99, 100, 101, 1_000, 10_000, draw.randrange(3, 5_000)):
        ordered = sorted(draw.random() for _ in range(n))
        assert percentile(ordered, float(q)) == nearest_rank(ordered, q), (q, n)


@pytest.mark.parametrize("q", [0.0, -1.0, 100.1, math.nan])
def test_percentile_refuses_what_is_no_percentage(q: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile([1.0], q)


def test_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_summary_of_known_samples() -> None:
    figures = summary([float(i) for i in range(100, 0, -1)])
    assert figures == {
        "n": 100,
        "p50": 50.0,
        "p90": 90.0,
        "p99": 99.0,
        "p999": None,
        "max": 100.0,
        "jitter": 49.0,
        "p99_over_p50": 99.0 / 50.0,
    }


def test_p999_is_missing_below_its_sample_count() -> None:
    assert summary([1.0] * (P999_MIN_SAMPLES - 1))["p999"] is None
    assert summary([float(i) for i in range(1, P999_MIN_SAMPLES + 1)])["p999"] == 9_990.0


def test_summary_of_nothing_is_missing_not_zero() -> None:
    figures = summary([])
    assert figures.pop("n") == 0
    assert set(figures) == set(summary([1.0])) - {"n"}
    assert set(figures.values()) == {None}


def test_summary_refuses_nan() -> None:
    with pytest.raises(ValueError, match="NaN"):
        summary([1.0, math.nan])


def test_ratio_is_missing_when_the_median_is_zero() -> None:
    assert summary([0.0, 0.0, 1.0])["p99_over_p50"] is None


def t_probability(t: float, degrees: int) -> float:
    """P(|T| <= t) by Simpson's rule over the density."""
    log_norm = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    norm = math.exp(log_norm) / math.sqrt(degrees * math.pi)
    steps = 20_000
    width = t / steps
    total = 0.0
    for i in range(steps + 1):
        weight = 1 if i in (0, steps) else (4 if i % 2 else 2)
        total += weight * (1 + (i * width) ** 2 / degrees) ** (-(degrees + 1) / 2)
    return 2 * norm * total * width / 3


@pytest.mark.parametrize("degrees", [1, 2, 3, 5, 10, 20, 29, 30, 31, 40, 199, 1_000])
def test_student_t_leaves_five_percent_outside(degrees: int) -> None:
    # 4 decimals of t move the probability by less than 5e-5 at any number of degrees.
    assert t_probability(student_t95(degrees), degrees) == pytest.approx(0.95, abs=5e-5)


def test_student_t_falls_towards_the_normal_quantile() -> None:
    values = [student_t95(n) for n in range(1, 200)]
    assert values == sorted(values, reverse=True)
    assert values[-1] > 1.959964


def test_student_t_needs_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        student_t95(0)


def test_mean_and_interval() -> None:
    mean, half = mean_ci95([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.3027 / math.sqrt(3))


def test_interval_of_one_value_is_missing() -> None:
    assert mean_ci95([3.0]) == (3.0, None)


def test_mean_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_ci95([])


def test_interval_covers_the_mean_of_small_samples(seed: int) -> None:
    draw = random.Random(seed)
    tries, hits = 4_000, 0
    for _ in range(tries):
        mean, half = mean_ci95([draw.gauss(5.0, 2.0) for _ in range(4)])
        assert half is not None
        hits += abs(mean - 5.0) <= half
    # The count is binomial(4000, 0.95): 5 standard deviations are 69.
    assert abs(hits - 0.95 * tries) < 69


def test_relative_difference_of_pairs() -> None:
    assert relative_ci95([2.0, 3.0, 4.0], [1.0, 1.5, 2.0]) == pytest.approx((1.0, 1.0, 1.0))
    ratio, low, high = relative_ci95([1.0, 2.0], [2.0, 2.0])
    # A base that never moves: the interval of the mean, divided by it.
    mean, half = mean_ci95([1.0, 2.0])
    assert half is not None and low is not None and high is not None
    assert ratio == pytest.approx(mean / 2 - 1)
    assert (low, high) == pytest.approx(((mean - half) / 2 - 1, (mean + half) / 2 - 1))


def test_a_relative_difference_that_has_no_interval() -> None:
    assert relative_ci95([1.0], [2.0]) == (-0.5, None, None)
    assert relative_ci95([1.0, 2.0, 3.0], [1.0, -1.0, 0.0]) == (None, None, None)
    ratio, low, high = relative_ci95([1.0, 2.0, 1.5], [9.0, -8.0, 1.0])
    assert ratio is not None and low is None and high is None  # the base may well be zero
    with pytest.raises(ValueError, match="pairs are needed"):
        relative_ci95([1.0], [])


def test_relative_interval_covers_the_true_ratio(seed: int) -> None:
    draw = random.Random(seed)
    tries, hits = 2_000, 0
    for _ in range(tries):
        base = [draw.gauss(10.0, 3.0) for _ in range(12)]
        values = [0.9 * b + draw.gauss(0.0, 1.0) for b in base]
        _, low, high = relative_ci95(values, base)
        assert low is not None and high is not None
        hits += low <= -0.1 <= high
    # Binomial(2000, 0.95): 5 standard deviations are 49.
    assert abs(hits - 0.95 * tries) < 49


def test_quartiles_and_spread() -> None:
    assert quartiles([4.0, 1.0, 3.0, 2.0]) == (1.0, 3.0)
    assert median([3.0, 1.0, 2.0]) == 2.0 and median([4.0, 1.0]) == 1.0
    assert spread([10.0, 10.0, 11.0, 12.0]) == pytest.approx(0.1)
    assert spread([1.0, 2.0, 3.0]) is None and spread([0.0] * 4) is None


@pytest.mark.parametrize(
    ("flags", "longest"),
    [([], 0), ([False], 0), ([True, True, False, True], 2), ([False, True, True, True], 3)],
)
def test_longest_streak(flags: list[bool], longest: int) -> None:
    assert longest_streak(flags) == longest


def test_slope_is_that_of_the_line(seed: int) -> None:
    draw = random.Random(seed)
    x = [draw.uniform(0, 1e6) for _ in range(50)]
    assert slope(x, [3.5 * v + 7 for v in x]) == pytest.approx(3.5)
    # An error that does not follow x leaves the slope: sum (x - mean) e = 0.
    assert slope([0.0, 1.0, 2.0, 3.0], [1.0, 0.0, 0.0, 1.0]) == 0.0
    for bad in (([], []), ([1.0, 1.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match="two different x"):
            slope(*bad)
    with pytest.raises(ValueError, match="pairs are needed"):
        slope([1.0], [])
