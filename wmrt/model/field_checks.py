"""What a field's definition must satisfy. Each function raises `SchemaError` that says the rule."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Sequence

import numpy as np

from wmrt.core.errors import SchemaError
from wmrt.model.rounding import MAX_Q, POWERS, exact_q, q_range, uniform_knots

#: Bucket knots: ``buckets + 1`` ascending numbers, or one such row per component of a vector.
Knots = Sequence[float] | Sequence[Sequence[float]]


def whole(value: object) -> bool:
    """True for a whole number that is no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def real(value: object) -> bool:
    """True for a finite number that is no bool and fits float64."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_common(required: bool, max_age: float | None) -> float | None:
    """``max_age`` as float, after checking both."""
    if not isinstance(required, bool):
        raise SchemaError(f"required must be true or false, got {required!r:.80}")
    if max_age is not None and not (real(max_age) and max_age > 0):
        raise SchemaError(
            f"max_age must be seconds above 0, or None for no limit, got {max_age!r:.80}"
        )
    return None if max_age is None else float(max_age)


def check_numbers(
    unit: str, low: float, high: float, decimals: int, buckets: int
) -> tuple[float, float]:
    """``low`` and ``high`` as float, after checking everything a numeric field is made of."""
    if not isinstance(unit, str):
        raise SchemaError(f"unit must be a string such as 'm/s', got {unit!r:.80}")
    if not (real(low) and real(high)):
        raise SchemaError(f"low and high must be finite numbers, got {low!r:.40} and {high!r:.40}")
    if not whole(decimals) or not 0 <= decimals <= 9:
        raise SchemaError(f"decimals must be a whole number from 0 to 9, got {decimals!r:.40}")
    if not whole(buckets) or not 1 <= buckets <= 65536:
        raise SchemaError(f"buckets must be a whole number from 1 to 65536, got {buckets!r:.40}")
    low, high = float(low) + 0.0, float(high) + 0.0  # + 0.0 turns -0.0 into 0.0
    _check_range(low, high, int(decimals))
    knots = uniform_knots(low, high, int(buckets))
    if any(a >= b for a, b in itertools.pairwise(knots)):
        raise SchemaError(
            f"{buckets} buckets over [{low:g}, {high:g}] are narrower than float32 resolves; "
            "use fewer buckets"
        )
    return low, high


def _check_range(low: float, high: float, decimals: int) -> None:
    """Raise unless the integers of the range can be told apart and come back from float32."""
    q_low, q_high = q_range(low, high, decimals)
    if q_low >= q_high:
        raise SchemaError(
            f"[{low:g}, {high:g}] holds fewer than two values at {decimals} decimals; "
            "low must be below high by at least one step"
        )
    if max(-q_low, q_high) > MAX_Q:
        raise SchemaError(
            f"[{low:g}, {high:g}] at {decimals} decimals needs integers beyond 2**50; "
            "use fewer decimals or another unit"
        )
    for q in (q_low, q_high):
        # A clamped reading must encode to itself again; any |q| below 2**23 does.
        back = exact_q(float(np.float32(q / POWERS[decimals])), decimals)
        if back != q:
            raise SchemaError(
                f"the bound {q / POWERS[decimals]!r} at {decimals} decimals is finer than float32 "
                f"resolves (next: {back / POWERS[decimals]!r}); round it or use fewer decimals"
            )


def check_values(values: Sequence[str]) -> tuple[str, ...]:
    """The values of a category as a tuple of plain str."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise SchemaError(f"values must be a list of strings, got {values!r:.80}")
    bad = [value for value in values if not isinstance(value, str) or value in ("", "unknown")]
    if bad:
        raise SchemaError(
            f"{bad[0]!r:.80} cannot be a value; give non-empty strings, "
            "and leave 'unknown' out: it is always value 0"
        )
    if not values or len(set(values)) != len(values):
        raise SchemaError(
            f"values must be at least one and all different, got {list(values)!r:.80}"
        )
    return tuple(str.__str__(value) for value in values)


def knot_rows(
    knots: Knots, n: int, low: float, high: float, buckets: int
) -> tuple[tuple[float, ...], ...]:
    """Knots as ``n`` rows of ``buckets + 1`` float32 values from low to high."""
    want = f"{buckets + 1} ascending numbers from {low:g} to {high:g}"
    try:
        table = np.asarray(knots, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise SchemaError(f"knots must be {want}, got {knots!r:.80}") from None
    if table.ndim == 1:
        table = np.broadcast_to(table, (n, table.shape[0]))
    if table.shape != (n, buckets + 1):
        raise SchemaError(f"knots must be {want}, got an array of shape {table.shape}")
    with np.errstate(over="ignore"):
        rows = table.astype(np.float32)
    ends = np.asarray([low, high], dtype=np.float32)
    # NaN fails both comparisons, an infinity the first.
    if not (rows[:, [0, -1]] == ends).all() or not (rows[:, 1:] > rows[:, :-1]).all():
        raise SchemaError(
            f"knots must be {want}, strictly ascending as float32 and with exactly these ends"
        )
    return tuple(tuple((row + np.float32(0.0)).tolist()) for row in rows)
