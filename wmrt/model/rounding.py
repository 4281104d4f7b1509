"""Numbers to integers: how a reading becomes q, exactly and the same on every machine.

A reading is cast to float32; the shortest decimal that identifies that float32 is rounded
half-even to ``decimals`` places, which gives the integer ``q = round(decimal * 10**decimals)``,
clamped to the field's range. (Of several decimals of the fewest digits the nearest is meant, of
two as near the one whose last digit is even.) It lies within half a float32 ulp of the reading, so
binary arithmetic alone decides every case but those within `TIE_RELATIVE` of a tie; only these pay
for decimal arithmetic.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

#: q of a value that is not known.
UNKNOWN = -(2**63)
#: Largest |q| a field may reach: q is then exact in float64, and so is `ROUNDER` plus it.
MAX_Q = 2**50
#: y + ROUNDER - ROUNDER rounds a float64 half-even to an integer for |y| up to 2**51, six times as
#: fast as round(y): at 1.5 * 2**52 the float64 ulp is 1.
ROUNDER = 1.5 * 2.0**52
#: Relative distance from a tie below which decimal arithmetic decides. Half a float32 ulp is at
#: most 2**-24 of the value, the float64 product adds 2**-53: 2**-23 is nearly twice their sum.
TIE_RELATIVE = 2.0**-23

#: 10**decimals as literals: no libm between a reading and its integer.
POWERS = (1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)

_CONTEXT = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_EVEN)


def exact_q(reading: float, decimals: int) -> int:
    """The shortest float32 repr of ``reading``, rounded half-even to ``decimals`` places, as q.

    Args:
        reading: finite value that float32 holds exactly.
        decimals: decimal places kept.

    The digits come from numpy's Dragon4 printer directly, which no print option can change.
    """
    digits = np.format_float_scientific(np.float32(reading), unique=True, trim="-")
    scaled = decimal.Decimal(digits).scaleb(decimals, _CONTEXT)
    return int(scaled.to_integral_value(decimal.ROUND_HALF_EVEN, _CONTEXT))


def q_range(low: float, high: float, decimals: int) -> tuple[int, int]:
    """Smallest and largest q whose decimal lies inside [low, high]."""
    first = decimal.Decimal(repr(low)).scaleb(decimals, _CONTEXT)
    last = decimal.Decimal(repr(high)).scaleb(decimals, _CONTEXT)
    return math.ceil(first), math.floor(last)


def tie_limit(q_low: int, q_high: int) -> float:
    """|y - round(y)| below which binary rounding is certain for every y in the range."""
    return 0.5 - TIE_RELATIVE * (max(abs(q_low), abs(q_high)) + 1)


def round_array(
    readings: npt.NDArray[np.float32],
    decimals: npt.NDArray[np.int64],
    q_low: npt.NDArray[np.int64],
    q_high: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """q of many readings, bit-equal to the scalar path.

    Args:
        readings: float32[..., N].
        decimals, q_low, q_high: int64[N], one entry per column.

    Returns:
        int64[..., N], clamped to [q_low, q_high]; `UNKNOWN` where the reading is not finite.
    """
    known = np.isfinite(readings)
    exact = np.where(known, readings, np.float32(0.0)).astype(np.float64)
    product = exact * np.take(POWERS, decimals)
    # Beyond a bound the answer is the bound: it is whole and reads back as itself from float32, so
    # that no decimal on the far side of it rounds to anything else.
    scaled = np.clip(product, q_low, q_high)
    nearest = np.rint(scaled)
    q = nearest.astype(np.int64)
    close = np.abs(scaled - nearest) >= 0.5 - TIE_RELATIVE * (np.abs(scaled) + 1.0)
    close &= scaled == product
    for index in zip(*np.nonzero(close), strict=True):
        q[index] = exact_q(float(exact[index]), int(decimals[index[-1]]))
    return np.where(known, q, UNKNOWN)


def uniform_knots(low: float, high: float, buckets: int) -> tuple[float, ...]:
    """``buckets + 1`` evenly spaced knots from low to high, each exactly a float32."""
    spaced = low + (high - low) * (np.arange(buckets + 1, dtype=np.float64) / buckets)
    spaced[-1] = high
    return tuple(spaced.astype(np.float32).tolist())


def bucket_bounds(
    knots: Sequence[float], q_low: int, q_high: int, decimals: int
) -> tuple[int, ...]:
    """Inner knots as integers: bound i is the smallest q whose float32 value reaches knot i + 1.

    The bucket of q is then ``bisect_right(bounds, q)``, with no float comparison left.
    """
    inner = np.asarray(knots[1:-1], dtype=np.float32)
    below = np.full(inner.shape, q_low - 1, dtype=np.int64)
    reached = np.full(inner.shape, q_high + 1, dtype=np.int64)
    for _ in range((q_high - q_low + 2).bit_length()):
        middle = (below + reached) // 2
        hit = (middle / POWERS[decimals]).astype(np.float32) >= inner
        moved = middle > below
        reached = np.where(hit & moved, middle, reached)
        below = np.where(~hit & moved, middle, below)
    return tuple(int(bound) for bound in reached)
