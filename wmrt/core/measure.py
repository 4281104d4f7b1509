"""How latency numbers are computed. The only place in wmrt that computes a percentile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

#: p99.9 needs this many samples; below it the figure is missing, not estimated.
P999_MIN_SAMPLES = 10_000

_Z95 = 1.959964
_T95 = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


def percentile(ordered: Sequence[float], q: float) -> float:
    """Nearest-rank percentile of an ascending, non-empty sequence; ``q`` in (0, 100].

    The rank is counted in integers, thousandths of a percent: ``99.9 / 100 * 10_000`` is a hair
    above 9 990 in floating point and its ceiling would pick the sample after the right one.
    """
    if len(ordered) == 0:
        raise ValueError("percentile of no samples")
    if not 0 < q <= 100:
        raise ValueError(f"percentile {q}: must be above 0 and at most 100")
    rank = -(-round(q * 1000) * len(ordered) // 100_000)
    return ordered[max(rank, 1) - 1]


def summary(samples: Sequence[float]) -> dict[str, float | int | None]:
    """p50, p90, p99, p99.9, max, jitter of samples in one unit.

    jitter is p99 - p50 in the samples' unit; p99_over_p50 is the ratio. p999 is None below
    `P999_MIN_SAMPLES` samples. With no samples every figure is None. Raises ValueError on NaN,
    which has no place in an order.
    """
    if any(math.isnan(sample) for sample in samples):
        raise ValueError("a sample is NaN")
    return ordered_summary(sorted(samples))


def ordered_summary(ordered: Sequence[float]) -> dict[str, float | int | None]:
    """`summary` of samples that are in ascending order already, and none of them NaN: it looks at
    a few of them only."""
    if len(ordered) == 0:
        keys = ("p50", "p90", "p99", "p999", "max", "jitter", "p99_over_p50")
        return {"n": 0, **dict.fromkeys(keys)}
    p50, p99 = percentile(ordered, 50), percentile(ordered, 99)
    return {
        "n": len(ordered),
        "p50": p50,
        "p90": percentile(ordered, 90),
        "p99": p99,
        "p999": percentile(ordered, 99.9) if len(ordered) >= P999_MIN_SAMPLES else None,
        "max": ordered[-1],
        "jitter": p99 - p50,
        "p99_over_p50": p99 / p50 if p50 > 0 else None,
    }


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """First and third quartile, by nearest rank, of samples in any order."""
    ordered = sorted(samples)
    return percentile(ordered, 25), percentile(ordered, 75)


def median(samples: Sequence[float]) -> float:
    """Nearest-rank median of samples in any order: always one of them."""
    return percentile(sorted(samples), 50)


def spread(samples: Sequence[float]) -> float | None:
    """Interquartile range over the median; None with fewer than 4 samples or a median of 0."""
    if len(samples) < 4:
        return None
    low, high = quartiles(samples)
    middle = median(samples)
    return (high - low) / middle if middle > 0 else None


def longest_streak(flags: Iterable[bool]) -> int:
    """Length of the longest run of true ones."""
    longest = current = 0
    for flag in flags:
        current = current + 1 if flag else 0
        longest = max(longest, current)
    return longest


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope of ``y`` over ``x``; ValueError unless there are two different x."""
    n = len(x)
    if n != len(y):
        raise ValueError(f"{n} x and {len(y)} y; pairs are needed")
    mean_x, mean_y = (math.fsum(v) / n if n else 0.0 for v in (x, y))
    square = math.fsum((v - mean_x) ** 2 for v in x)
    if square == 0:
        raise ValueError("a slope needs two different x")
    return math.fsum((v - mean_x) * (w - mean_y) for v, w in zip(x, y, strict=True)) / square


def slope_ci95(x: Sequence[float], y: Sequence[float]) -> float:
    """Half the width of the 95% interval of `slope`, by Student's t; ValueError below three
    pairs."""
    found, n = slope(x, y), len(x)
    if n < 3:
        raise ValueError(f"how sure a slope is takes 3 pairs, got {n}")
    mean_x, mean_y = math.fsum(x) / n, math.fsum(y) / n
    rest = math.fsum((w - mean_y - found * (v - mean_x)) ** 2 for v, w in zip(x, y, strict=True))
    square = math.fsum((v - mean_x) ** 2 for v in x)
    return student_t95(n - 2) * math.sqrt(rest / (n - 2) / square)


def student_t95(degrees: int) -> float:
    """Two-sided 95% quantile of Student's t for ``degrees`` >= 1 degrees of freedom.

    Tabulated to 30; above that the Cornish-Fisher series around the normal quantile, whose error
    is below 2e-4 there (Abramowitz and Stegun 26.7.5).
    """
    if degrees < 1:
        raise ValueError(f"Student's t needs at least 1 degree of freedom, got {degrees}")
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = _Z95
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def mean_ci95(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and 95% half-width; the half-width needs two values, else it is None.

    Student's t, not 1.96 standard errors: over 3 episodes that would be 2.2 times too narrow.
    """
    n = len(values)
    if n == 0:
        raise ValueError("mean of no values")
    mean = math.fsum(values) / n
    if n < 2:
        return mean, None
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return mean, student_t95(n - 1) * math.sqrt(variance / n)


def relative_ci95(
    values: Sequence[float], base: Sequence[float]
) -> tuple[float | None, float | None, float | None]:
    """Mean of ``values`` over that of ``base``, less 1, with the bounds of its 95% interval.

    Both were measured on the same units, one pair each. Fieller's theorem with Student's t ("Some
    problems in interval estimation", Journal of the Royal Statistical Society B 16, 1954). The
    bounds are None with fewer than two pairs, or when the mean of ``base`` is not clearly above 0;
    all are None when it is not above 0 at all.
    """
    n = len(values)
    if n != len(base) or n == 0:
        raise ValueError(f"{n} values and {len(base)} of the base; pairs are needed")
    x, b = math.fsum(values) / n, math.fsum(base) / n
    if b <= 0:
        return None, None, None
    ratio = x / b
    if n < 2:
        return ratio - 1, None, None
    pairs = [(v - x, w - b) for v, w in zip(values, base, strict=True)]
    t2 = student_t95(n - 1) ** 2 / (n * (n - 1))
    vxx, vxb, vbb = (
        t2 * math.fsum(p)
        for p in ((u * u for u, _ in pairs), (u * w for u, w in pairs), (w * w for _, w in pairs))
    )
    # (x - r b)^2 <= vxx - 2 r vxb + r^2 vbb, a quadratic in r
    a, half, c = b * b - vbb, x * b - vxb, x * x - vxx
    root = half * half - a * c
    if a <= 0 or root < 0:
        return ratio - 1, None, None
    width = math.sqrt(root)
    return ratio - 1, (half - width) / a - 1, (half + width) / a - 1
