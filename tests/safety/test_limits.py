"""Limits: physical units, refusals, the file form, and the arithmetic derived from them."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.safety.support import DRIVING, ODD, PERIOD, limits
from wmrt.core.errors import SafetyError
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.safety import DimLimit, Limits, StateLimit
from wmrt.safety.limit_checks import is_number

SPEED = StateLimit("speed", "m/s", 0.0, 40.0)


def test_driving_limits_per_step() -> None:
    (steer_up, steer_down), (accelerate, brake) = limits().deltas(PERIOD)
    assert steer_up == steer_down == pytest.approx(0.5, rel=1e-15)
    assert accelerate == pytest.approx(0.3, rel=1e-15)
    assert brake == pytest.approx(0.6, rel=1e-15)


@given(st.floats(0.0, 1.0))
def test_deltas_are_the_specs(seconds: float) -> None:
    for spec in (DRIVING, ODD):
        assert limits(spec).deltas(seconds) == tuple(d.max_delta(seconds) for d in spec.dims)


def test_boxes_shrink_around_neutral() -> None:
    made = limits(ODD, neutral=(-1.0, 0.5, 0.0))
    assert [(b.low, b.high) for b in made.boxes(1.0)] == [(-1.0, 1.0)] * 3
    assert [(b.low, b.high) for b in made.boxes(0.5)] == [(-1.0, 0.0), (-0.25, 0.75), (-0.5, 0.5)]
    assert all(b.tolerated_low == -1.1 and b.tolerated_high == 1.1 for b in made.boxes(0.5))


def test_a_tighter_range_and_rate() -> None:
    tight = DimLimit("steering", "rad", -0.03, 0.03, 0.1, 0.2, 0.01)
    made = Limits(DRIVING, PERIOD, (0.0, 0.0), (tight, limits().dims[1]))
    assert made.boxes(1.0)[0].low == pytest.approx(-0.5)
    assert made.deltas(PERIOD)[0] == pytest.approx((0.1 / 0.6, 0.2 / 0.6))
    assert made.agree == pytest.approx((0.01 / 0.06, 0.6))


def test_neutral_as_float32_inside_a_box_that_is_none() -> None:
    tight = DimLimit("steering", "rad", 0.006, 0.06, 0.1, 0.2, 0.01)
    low = DRIVING.dims[0].to_normalised(0.006)
    made = Limits(DRIVING, PERIOD, (low, 0.0), (tight, limits().dims[1]))
    assert low <= made.rest[0] <= low + 1e-7


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 40.0), (-100.0, 10.0), (-10.0, 100.0), (5.0, 6.0), (-2.0, -1.0), (-3, 0)],
)
def test_a_value_of_1_2_times_a_bound_is_never_tolerated(low: float, high: float) -> None:
    made = limits(state=(StateLimit("x", "m", low, high),))
    ((_, lowest, highest),) = made.state_bounds()
    assert lowest <= low and highest >= high
    assert not lowest <= 1.2 * low < low or low == 0
    assert not high < 1.2 * high <= highest or high == 0
    assert max(low - lowest, highest - high) <= 0.05 * (high - low) + 1e-15 * abs(low)


def test_json_form_and_hash() -> None:
    made = limits(ODD, state=(SPEED,), agree={"arm": 0.5}, trip_window=3.0, neutral=(0.1, 0, 0))
    again = Limits.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.hash == made.hash
    assert len(made.hash) == 16
    assert dataclasses.replace(made, trip_window=3.5).hash != made.hash
    assert made.to_json()["dims"][0] | {"agree": 0} == {
        "name": "valve", "unit": "bar", "low": 0.7, "high": 3.3, "rate_up": 1.7, "rate_down": 0.9,
        "agree": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra": 1}, "extra"),
        ({"dims": [{"name": "steering"}]}, "unit"),
        ({"neutral": ["a", 0.0]}, "limits"),
        ({"neutral": None}, "limits"),
        ({"period": "0.1"}, "period must be a finite number at least 1e-09"),
    ],
)
def test_a_file_that_is_wrong(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SafetyError, match=message):
        Limits.from_json(limits().to_json() | change)


@pytest.mark.parametrize("data", ["ab", [1], None, 7])
def test_what_is_no_file_at_all(data: Any) -> None:
    with pytest.raises(SafetyError, match="limits: "):
        Limits.from_json(data)


def test_lists_are_lists_as_json_has_them() -> None:
    data = limits(state=(SPEED,)).to_json()
    assert json.loads(json.dumps(data)) == data


def test_the_hash_is_the_same_in_every_release() -> None:
    """It stands in recordings. A change of it belongs in the changelog."""
    assert limits(state=(SPEED,)).hash == "c8044daa6f9d2fac"


@pytest.mark.parametrize("key", ["spec", "period", "neutral", "dims"])
def test_a_file_that_lacks_something(key: str) -> None:
    data = limits().to_json()
    del data[key]
    with pytest.raises(SafetyError, match=f"'{key}' is missing"):
        Limits.from_json(data)


def test_a_file_may_leave_out_states_and_options() -> None:
    data = {key: limits().to_json()[key] for key in ("spec", "period", "neutral", "dims")}
    assert Limits.from_json(data) == limits()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"period": 0.0}, "period"),
        ({"period": math.nan}, "period"),
        ({"period": math.inf}, "period"),
        ({"step_periods": 2.1}, "step_periods must be a finite number above 0 and at most 2"),
        ({"trip_window": -1.0}, "trip_window"),
        ({"latch_window": 0}, "latch_window"),
        ({"range_tolerance": 0.2}, "range_tolerance must be a finite number at least 0"),
        ({"rate_tolerance": -0.1}, "rate_tolerance"),
        ({"wall_tolerance": None}, "wall_tolerance"),
        ({"half_open_scale": 0.0}, "half_open_scale"),
        ({"half_open_scale": 1.1}, "half_open_scale"),
        ({"period": 0.9e-9}, "period must be a finite number at least 1e-09"),
        ({"period": 1e300}, "period must be .* at most 1e\\+09, got 1e\\+300"),
        ({"trip_window": 1e305}, "trip_window must be .* at most 1e\\+09, got 1e\\+305"),
        ({"latch_window": 1.7e308}, "latch_window must be .* at most 1e\\+09"),
        ({"trip_limit": 0}, "trip_limit must be a whole number of at least 1 .* got 0"),
        ({"trip_limit": 10**30}, "at most 1000000, got 'integer of 100 bits'"),
        ({"latch_opens": 1_000_001}, "latch_opens must be .* at most 1000000, got 1000001"),
        ({"good_inputs": 1.0}, "good_inputs"),
        ({"clean_steps": True}, "clean_steps"),
        ({"heal_steps": -3}, "heal_steps"),
        ({"latch_opens": "3"}, "latch_opens"),
        ({"neutral": (0.0,)}, "2 dims and 1 neutral values"),
        ({"neutral": (0.0, 1.5)}, "neutral of acceleration"),
        ({"neutral": (math.nan, 0.0)}, "neutral of steering"),
        ({"neutral": (-1.5, 0.0)}, "neutral of steering"),
        ({"agree": {"brake": 1.0}}, "no actuator 'brake'"),
        ({"agree": dict.fromkeys("hgfedcba", 1.0)}, "no actuator 'a'"),
        ({"agree": {"steering": -1.0}}, "agree must be at least 0"),
        ({"state": (SPEED, SPEED)}, "must be different"),
        ({"state": (StateLimit("x", "m", 1.0, 1.0),)}, "finite low < high"),
        ({"state": (StateLimit("x", "m", 0.0, math.inf),)}, "finite low < high"),
        ({"state": (StateLimit("x", "m", -math.inf, 0.0),)}, "finite low < high"),
        ({"state": (StateLimit("x", "m", math.nan, 0.0),)}, "finite low < high"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SafetyError, match=message):
        limits(**options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "wheel"}, "stands where the action spec has 'steering'"),
        ({"unit": "deg"}, "'deg' stands where"),
        ({"low": -0.07}, "must lie within the actuator's"),
        ({"high": 0.07}, "must lie within the actuator's"),
        ({"low": 0.06}, "must lie within the actuator's"),
        ({"low": math.nan}, "must lie within the actuator's"),
        ({"rate_up": 0.0}, "above 0"),
        ({"rate_up": -0.5}, "above 0"),
        ({"rate_down": 0.0}, "above 0"),
        ({"rate_down": -0.5}, "above 0"),
        ({"rate_up": 0.31}, "at most the actuator's"),
        ({"rate_down": 0.31}, "at most the actuator's"),
        ({"rate_down": -1.0}, "above 0"),
        ({"rate_down": math.nan}, "above 0"),
        ({"agree": math.inf}, "agree"),
        ({"low": 0.01}, "neutral of steering"),
    ],
)
def test_refused_dims(change: dict[str, Any], message: str) -> None:
    good = limits()
    dims = (dataclasses.replace(good.dims[0], **change), good.dims[1])
    with pytest.raises(SafetyError, match=message):
        dataclasses.replace(good, dims=dims)


def test_no_tolerance_between_channels_can_be_had() -> None:
    assert limits(agree={"steering": 0.0}).agree[0] == 0.0


def test_neutral_is_a_number() -> None:
    with pytest.raises(SafetyError, match="neutral of steering"):
        dataclasses.replace(limits(), neutral=(True, 0.0))


def test_one_dim_per_actuator() -> None:
    good = limits()
    with pytest.raises(SafetyError, match="1 dims and 2 neutral values for 2 actuators"):
        dataclasses.replace(good, dims=good.dims[:1])


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("period", 1e-9, 1e9),
        ("trip_window", None, 1e9),
        ("latch_window", None, 1e9),
        ("step_periods", None, 2.0),
        ("half_open_scale", None, 1.0),
        ("range_tolerance", 0.0, 0.19),
        ("rate_tolerance", 0.0, 0.19),
        ("wall_tolerance", 0.0, 0.19),
    ],
)
def test_the_bounds_of_every_option(name: str, least: float | None, most: float) -> None:
    """``least`` None: anything above 0."""
    good = limits()
    low = math.ulp(0.0) if least is None else least
    for value in (low, most):
        if name != "period" or value == low:  # times a rate it is beyond any range
            assert getattr(dataclasses.replace(good, **{name: value}), name) == value
    beyond = [
        0.0 if least is None else math.nextafter(least, -1.0),
        -1.0,
        -math.inf,
        math.inf,
        math.nan,
        -(10**400),
    ]
    beyond += [math.nextafter(most, 2.0 * most)]
    for value in beyond:
        with pytest.raises(SafetyError, match=rf"^limits: {name} must be a finite number"):
            dataclasses.replace(good, **{name: value})


@pytest.mark.parametrize(
    "name", ["trip_limit", "good_inputs", "clean_steps", "heal_steps", "latch_opens"]
)
def test_the_bounds_of_every_count(name: str) -> None:
    assert getattr(limits(**{name: 1}), name) == 1
    for value in (0, -1, 1.0, True, None, "1"):
        with pytest.raises(
            SafetyError, match=rf"^limits: {name} must be a whole number of at least"
        ):
            limits(**{name: value})


@pytest.mark.parametrize("value", [0, 7, -7, 0.5, -0.0, sys.float_info.max, -sys.float_info.max])
def test_numbers(value: Any) -> None:
    assert is_number(value) is True


@pytest.mark.parametrize(
    "value",
    [True, False, None, "1", math.nan, math.inf, -math.inf, 10**400, -(10**400), 1j, [1], b"1"],
)
def test_what_is_no_number(value: Any) -> None:
    assert is_number(value) is False


@pytest.mark.parametrize(("low", "neutral", "nearest"), [(0.4e-9, 1e-9, 1), (0.0, 1e-9, 0)])
def test_rest_is_in_the_box_where_neutral_is_almost_its_bound(
    low: float, neutral: float, nearest: int
) -> None:
    """Between two float32s: ``low`` and ``neutral`` are above the lower one by so much."""
    single = np.float32(0.1)
    between = (single, np.nextafter(single, np.float32(1.0)))
    spec = ActionSpec((ActionDim("x", "m", -1.0, 1.0, 1.0, 1.0),))
    dim = DimLimit("x", "m", float(single) + low, 1.0, 1.0, 1.0, 0.1)
    made = Limits(spec, PERIOD, (float(single) + neutral,), (dim,))
    assert made.rest == (float(between[nearest]),)


def test_limits_cannot_be_altered() -> None:
    made = limits(state=(SPEED,))
    for part, name in ((made, "period"), (made.dims[0], "low"), (made.state[0], "low")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, 0.5)


@pytest.mark.parametrize(
    "name", ["trip_limit", "good_inputs", "clean_steps", "heal_steps", "latch_opens"]
)
def test_counts_end_at_a_million(name: str) -> None:
    most = dataclasses.replace(limits(), **{name: 1_000_000})
    assert getattr(most, name) == 1_000_000
    with pytest.raises(SafetyError, match=f"{name} must be a whole number of at least 1 and at"):
        dataclasses.replace(limits(), **{name: 1_000_001})
