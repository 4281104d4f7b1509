"""Device function: cosine and sine of an exact phase, in float32 arithmetic alone.

A phase is an integer number of 2^-32 turns. Its quadrant is split off in integers, what is left is
at most an eighth of a turn and is kept as the sum of two floats, so nothing is lost before the last
roundings: both results are within 1.1 ulp of the exact ones.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import triton
import triton.language as tl

#: 2 pi to 50 digits, more than two floats hold.
_TAU = Fraction("6.28318530717958647692528676655900576839433879875021")


def _two(value: Fraction) -> tuple[tl.constexpr, tl.constexpr]:
    """A number as a float32 and the float32 of what that leaves."""
    high = float(np.float32(float(value)))
    return tl.constexpr(high), tl.constexpr(float(np.float32(float(value - Fraction(high)))))


def _term(power: int) -> tl.constexpr:
    """Coefficient of u^power in the Taylor series of sin(2 pi u) or cos(2 pi u)."""
    sign = -1 if power % 4 >= 2 else 1
    return tl.constexpr(float(sign * _TAU**power / math.factorial(power)))


# Up to u = 1/8 what follows the last term is 0.04 (sine) and 0.01 (cosine) of a half ulp.
TAU_HIGH, TAU_LOW = _two(_TAU)
HALF_HIGH, HALF_LOW = _two(_TAU**2 / 2)
S3, S5, S7, S9 = _term(3), _term(5), _term(7), _term(9)
C4, C6, C8, C10 = _term(4), _term(6), _term(8), _term(10)


@triton.jit
def cos_sin(turns: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """cos and sin float32 of ``turns``, uint32 numbers of 2^-32 turns."""
    quadrant = ((turns + 0x20000000) >> 30) & 3
    rest = (turns - (quadrant << 30)).to(tl.int32)  # -2^29 to 2^29
    near = rest.to(tl.float32)
    u = near * 2.0**-32
    below = (rest - near.to(tl.int32)).to(tl.float32) * 2.0**-32  # u + below is exact
    square = u * u
    rounded = tl.fma(u, u, -square) + 2.0 * u * below  # square + rounded is (u + below)^2
    tail = u * square * (S3 + square * (S5 + square * (S7 + square * S9)))
    sine = tl.fma(u, TAU_HIGH, tl.fma(below, TAU_HIGH, tl.fma(u, TAU_LOW, tail)))
    tail = square * square * (C4 + square * (C6 + square * (C8 + square * C10)))
    tail -= rounded * HALF_HIGH + square * HALF_LOW
    cosine = tl.fma(square, -HALF_HIGH, 1.0) + tail
    swap = (quadrant & 1) == 1
    cos = tl.where(swap, sine, cosine)
    sin = tl.where(swap, cosine, sine)
    cos = tl.where((quadrant == 1) | (quadrant == 2), -cos, cos)
    return cos, tl.where(quadrant >= 2, -sin, sin)
