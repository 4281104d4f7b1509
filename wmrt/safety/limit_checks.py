"""What `Limits` refuses."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from wmrt.core.errors import SafetyError
from wmrt.core.types import ActionDim
from wmrt.safety.events import describe

if TYPE_CHECKING:
    from wmrt.safety.limits import DimLimit, Limits

#: Seconds: 31 years; what is counted in nanoseconds stays a number.
LONGEST = 1e9
#: Steps or trips: 2.7 hours at 100 Hz, and what a record of their times may take in memory.
MOST = 1_000_000


def check_numbers(limits: Limits) -> None:
    """Refuse settings out of their range."""
    _require("period", limits.period, 1e-9, LONGEST)
    for name in ("trip_window", "latch_window"):
        _require(name, getattr(limits, name), 0.0, LONGEST, open_low=True)
    _require("step_periods", limits.step_periods, 0.0, 2.0, open_low=True)
    for name in ("range_tolerance", "rate_tolerance", "wall_tolerance"):
        _require(name, getattr(limits, name), 0.0, 0.19)  # a ramp to 1.2 times a limit has to trip
    _require("half_open_scale", limits.half_open_scale, 0.0, 1.0, open_low=True)
    for name in ("trip_limit", "good_inputs", "clean_steps", "heal_steps", "latch_opens"):
        value = getattr(limits, name)
        if type(value) is not int or not 1 <= value <= MOST:
            raise SafetyError(
                f"limits: {name} must be a whole number of at least 1 and at most {MOST}, "
                f"got {describe(value)!r}"
            )


def is_number(value: object) -> bool:
    """A finite number that a float can hold; no flag."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max


def _require(name: str, value: Any, low: float, high: float, open_low: bool = False) -> None:
    if not is_number(value) or not low <= value <= high or (open_low and value == low):
        bounds = f"{'above' if open_low else 'at least'} {low:g} and at most {high:g}"
        raise SafetyError(
            f"limits: {name} must be a finite number {bounds}, got {describe(value)!r}"
        )


def check_dim(dim: ActionDim, limit: DimLimit, rest: float) -> None:
    """Refuse limits that are not the actuator's own or tighter."""
    if (limit.name, limit.unit) != (dim.name, dim.unit):
        raise SafetyError(
            f"limits: {limit.name!r} in {limit.unit!r} stands where the action spec has "
            f"{dim.name!r} in {dim.unit!r}; use its order and units"
        )
    if not dim.low <= limit.low < limit.high <= dim.high:
        raise SafetyError(
            f"limits: {dim.name} range [{limit.low}, {limit.high}] must lie within the actuator's "
            f"[{dim.low}, {dim.high}] {dim.unit}"
        )
    if not (0 < limit.rate_up <= dim.rate_up and 0 < limit.rate_down <= dim.rate_down):
        raise SafetyError(
            f"limits: {dim.name} rates up {limit.rate_up}, down {limit.rate_down} must be above 0 "
            f"and at most the actuator's {dim.rate_up}, {dim.rate_down} {dim.unit}/s"
        )
    if not (is_number(limit.agree) and limit.agree >= 0):
        raise SafetyError(f"limits: {dim.name} agree must be at least 0, got {limit.agree}")
    low, high = dim.to_normalised(limit.low), dim.to_normalised(limit.high)
    if not (is_number(rest) and low <= rest <= high):
        raise SafetyError(
            f"limits: neutral of {dim.name} must be normalised, in [{low:g}, {high:g}], got {rest}"
        )
