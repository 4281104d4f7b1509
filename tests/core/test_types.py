from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, replace
from typing import Any

import pytest

from wmrt.core.errors import SafetyError
from wmrt.core.types import ActionDim, ActionSpec

STEERING = ActionDim("steering", "rad", -0.06, 0.06, 0.30, 0.30)
ACCELERATION = ActionDim("acceleration", "m/s^2", -5.0, 5.0, 15.0, 30.0)
SPEC = ActionSpec((STEERING, ACCELERATION))


def test_ends_and_middle_map_to_the_machine() -> None:
    assert STEERING.to_physical(-1.0) == -0.06
    assert STEERING.to_physical(1.0) == 0.06
    assert ACCELERATION.to_physical(0.0) == 0.0


def test_physical_and_normalised_undo_each_other(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(1_000):
        low = draw.uniform(-100.0, 100.0)
        dim = ActionDim("d", "u", low, low + draw.uniform(0.01, 100.0), 1.0, 1.0)
        value = draw.uniform(-1.5, 1.5)
        # low and high bound the intermediate sums, a few ulp of them over the half width.
        error = 8 * math.ulp(200.0) / (dim.high - dim.low)
        assert dim.to_normalised(dim.to_physical(value)) == pytest.approx(value, abs=error)


def test_rates_of_one_control_step() -> None:
    assert STEERING.max_delta(0.1) == pytest.approx((0.5, 0.5))
    assert ACCELERATION.max_delta(0.1) == pytest.approx((0.3, 0.6))


@pytest.mark.parametrize("seconds", [0.0, -0.0, -0.1, -math.inf, math.nan])
def test_no_time_allows_no_change(seconds: float) -> None:
    assert ACCELERATION.max_delta(seconds) == (0.0, 0.0)


@pytest.mark.parametrize("key", ["low", "high", "rate_up", "rate_down"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_limit_must_be_finite(key: str, value: float) -> None:
    with pytest.raises(SafetyError, match=f"'steering': {key} must be finite"):
        replace(STEERING, **{key: value})


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (1.0, -1.0)])
def test_low_must_be_below_high(low: float, high: float) -> None:
    with pytest.raises(SafetyError, match="must be below"):
        replace(STEERING, low=low, high=high)


@pytest.mark.parametrize("key", ["rate_up", "rate_down"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_rate_must_be_positive(key: str, value: float) -> None:
    with pytest.raises(SafetyError, match="rates must be positive"):
        replace(STEERING, **{key: value})


def test_names_are_unique_and_at_least_one() -> None:
    assert SPEC.names == ("steering", "acceleration")
    assert len(SPEC) == 2
    with pytest.raises(SafetyError, match="unique"):
        ActionSpec((STEERING, STEERING))
    with pytest.raises(SafetyError, match="at least one"):
        ActionSpec(())


def test_a_vector_becomes_named_numbers() -> None:
    assert SPEC.to_physical([1.0, -1.0]) == {"steering": 0.06, "acceleration": -5.0}
    with pytest.raises(SafetyError, match="has 3 numbers"):
        SPEC.to_physical([0.0, 0.0, 0.0])


def test_json_round_trip() -> None:
    assert ActionSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"name": "steering"},
        {**asdict(STEERING), "gain": 2.0},
        {**asdict(STEERING), "low": "left"},
        {**asdict(STEERING), "low": None},
    ],
)
def test_json_with_wrong_keys_or_types(entry: dict[str, Any]) -> None:
    with pytest.raises(SafetyError, match="each entry needs name, unit, low, high"):
        ActionSpec.from_json([entry])
