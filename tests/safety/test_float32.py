"""float32 without numpy, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrt.safety.float32 import narrow, to_float32, towards

UNIT = st.floats(-1.0, 1.0, allow_nan=False)
SINGLE = st.floats(-1.0, 1.0, width=32)
SMALLEST = 2.0**-149


@given(UNIT)
def test_to_float32_is_numpys(value: float) -> None:
    assert to_float32(value) == float(np.float32(value))


def test_to_float32_keeps_the_sign_of_zero() -> None:
    assert math.copysign(1.0, to_float32(-0.0)) == -1.0


def test_beyond_float32_is_an_error() -> None:
    with pytest.raises(OverflowError):
        to_float32(1e39)


@given(UNIT, SINGLE)
def test_towards_is_the_nearest_float32_between(value: float, anchor: float) -> None:
    result = towards(value, anchor)
    low, high = min(value, anchor), max(value, anchor)
    assert low <= result <= high
    assert float(np.float32(result)) == result
    beyond = float(np.nextafter(np.float32(result), np.float32(math.copysign(2, value - anchor))))
    if value != anchor:  # one float32 further would be past the value
        assert beyond > value if value > anchor else beyond < value


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_towards_near_zero(sign: float) -> None:
    assert towards(sign * 1e-60, 0.0) == 0.0
    assert towards(sign * 1e-60, sign * 0.25) == sign * SMALLEST
    assert towards(sign * 1e-60, -sign * 0.25) == 0.0
    assert towards(0.0, sign * 0.25) == 0.0


@given(SINGLE, SINGLE, UNIT)
def test_narrow_lands_inside(a: float, b: float, value: float) -> None:
    low, high = min(a, b), max(a, b)
    inside = min(max(value, low), high)
    result = narrow(low, high, inside)
    assert low <= result <= high
    assert float(np.float32(result)) == result


@pytest.mark.parametrize("bound", [0.1, -0.1, 0.3, -0.7, 1 / 3])
def test_narrow_at_a_bound_that_is_no_float32(bound: float) -> None:
    assert narrow(bound, 1.0, bound) >= bound
    assert narrow(-1.0, bound, bound) <= bound
    assert abs(narrow(bound, 1.0, bound) - bound) <= np.spacing(np.float32(abs(bound)))
