"""The limits file's form: what it states, what it leaves out, and each thing it may not say."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.safety.support import DRIVING, ODD, PERIOD, limits
from wmrt.core.errors import SafetyError
from wmrt.safety import Limits, StateLimit, tighten, to_document

STATES = (StateLimit("speed", "m/s", 0.0, 40.0), StateLimit("pose", "m", -5.0, 5.0))
BASE = limits(state=STATES)
DOCUMENT = {
    "wmrt_limits": 1,
    "actions": {
        "steering": {
            "unit": "rad", "low": -0.03, "high": 0.04, "rate_up": 0.1, "rate_down": 0.2,
            "agree": 0.01,
        },
        "acceleration": {
            "unit": "m/s^2", "low": -5, "high": 2, "rate_up": 5.0, "rate_down": 30,
        },
    },
    "state": {"speed": {"unit": "m/s", "low": 1, "high": 30.5}},
    "options": {"trip_window": 1.5, "trip_limit": 2},
}  # fmt: skip


STEERING: Any = DOCUMENT["actions"]["steering"]  # type: ignore[index]


def changed(*path: str, value: Any = None, drop: bool = False) -> dict[str, Any]:
    """The document with another value at a place, or without what is there."""
    document = copy.deepcopy(DOCUMENT)
    at: Any = document
    for key in path[:-1]:
        at = at[key]
    if drop:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return document


def test_what_is_stated_counts_and_the_rest_is_the_bases() -> None:
    made = tighten(BASE, DOCUMENT)
    steering, acceleration = made.dims
    assert dataclasses.astuple(steering) == ("steering", "rad", -0.03, 0.04, 0.1, 0.2, 0.01)
    assert dataclasses.astuple(acceleration) == (
        "acceleration", "m/s^2", -5.0, 2.0, 5.0, 30.0, PERIOD * 30.0,
    )  # fmt: skip
    assert made.state == (StateLimit("speed", "m/s", 1.0, 30.5), STATES[1])
    assert (made.trip_window, made.trip_limit) == (1.5, 2)
    same = {f.name for f in dataclasses.fields(Limits)} - {
        "dims", "state", "trip_window", "trip_limit",
    }  # fmt: skip
    assert all(getattr(made, name) == getattr(BASE, name) for name in same)
    assert made.hash != BASE.hash


def test_agree_follows_the_faster_direction() -> None:
    document = changed("actions", "steering", "rate_up", value=0.3)
    del document["actions"]["steering"]["agree"]
    assert tighten(BASE, document).dims[0].agree == pytest.approx(PERIOD * 0.3)


def test_states_and_options_may_be_left_out_and_the_bounds_themselves_given() -> None:
    document = {"wmrt_limits": 1, "actions": to_document(BASE)["actions"]}
    assert tighten(BASE, document) == BASE


@given(st.floats(0.01, 0.19), st.integers(1, 9), st.floats(0.01, 1.0), st.sampled_from([0, 1]))
def test_there_and_back(tolerance: float, count: int, scale: float, which: int) -> None:
    spec = (DRIVING, ODD)[which]
    made = limits(
        spec, state=STATES, range_tolerance=tolerance, heal_steps=count, half_open_scale=scale
    )
    assert tighten(limits(spec, state=STATES), to_document(made)) == made


def test_a_document_states_every_number_of_the_limits() -> None:
    options = to_document(BASE)["options"]
    named = {"spec", "period", "neutral", "dims", "state"}
    assert set(options) == {f.name for f in dataclasses.fields(Limits)} - named


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "the document must be an object, got None"),
        ([DOCUMENT], "the document must be an object, got '<list>'"),
        ({}, "the document lacks 'wmrt_limits'; it needs wmrt_limits, actions, and may have state"),
        (changed("actions", drop=True), "the document lacks 'actions'"),
        (changed("period", value=0.1), "the document has 'period'"),
        (changed("wmrt_limits", value=2), "wmrt_limits is 2; this release reads 1"),
        (changed("wmrt_limits", value="1"), "wmrt_limits is '1'"),
        (changed("wmrt_limits", value=True), "wmrt_limits is True"),
        (changed("wmrt_limits", value=1.0), "wmrt_limits is 1.0"),
        (changed("actions", value=[]), "actions must be an object"),
        (changed("actions", "steering", drop=True), "actions lacks 'steering'"),
        (changed("actions", "brake", value={}), "actions has 'brake'"),
        (changed("actions", "steering", value=0.3), "actions.steering must be an object, got 0.3"),
        (changed("actions", "steering", "unit", drop=True), "actions.steering lacks 'unit'"),
        (changed("actions", "steering", "rate_down", drop=True), "steering lacks 'rate_down'"),
        (changed("actions", "steering", "rate", value=1), "actions.steering has 'rate'; it needs"),
        (changed("actions", "steering", "unit", value="deg"), "unit is 'deg', here it is 'rad'"),
        (changed("actions", "steering", "unit", value=None), "unit is None, here it is 'rad'"),
        (changed("actions", "steering", "low", value="-1"), "finite number, got '-1'"),
        (changed("actions", "steering", "low", value=math.nan), "low must be a finite number"),
        (changed("actions", "steering", "high", value=math.inf), "high must be a finite number"),
        (changed("actions", "steering", "high", value=True), "high must be a finite number"),
        (changed("actions", "steering", "agree", value=10**400), "agree must be a finite number"),
        (changed("actions", "steering", "agree", value=-0.1), "agree must be at least 0"),
        (changed("actions", "steering", "low", value=-0.0601), "is not within"),
        (changed("actions", "steering", "high", value=0.0601), "is not within"),
        (changed("actions", "steering", "high", value=-0.04), "must lie within the actuator's"),
        (changed("actions", "steering", "low", value=0.01), "neutral of steering"),
        (changed("actions", "steering", "rate_up", value=0.301), "is 0.301 rad/s, above 0.3"),
        (changed("actions", "steering", "rate_down", value=9), "rate_down is 9 rad/s, above 0.3"),
        (changed("actions", "steering", "rate_up", value=0), "must be above 0"),
        (changed("state", value=None), "state must be an object"),
        (changed("state", "gap", value={}), "'gap'; it needs nothing, and may have speed"),
        (changed("state", "speed", "unit", value="km/h"), "state.speed.unit is 'km/h'"),
        (changed("state", "speed", "agree", value=1), "state.speed has 'agree'"),
        (changed("state", "speed", "high", value=40.1), r"\[1, 40.1\] is not within \[0, 40\] m/s"),
        (changed("state", "speed", "low", value=-0.1), "is not within"),
        (changed("state", "speed", "low", value=30.5), "finite low < high"),
        (changed("options", value=[1]), "options must be an object"),
        (changed("options", "period", value=1), "options has 'period'"),
        (changed("options", "trip_limit", value=1.5), "trip_limit must be a whole number"),
        (changed("options", "trip_window", value=True), "trip_window must be a finite number"),
        (changed("options", "latch_window", value=10**400), "latch_window must be a finite number"),
    ],
)  # fmt: skip
def test_refusals(document: Any, message: str) -> None:
    with pytest.raises(SafetyError, match=message):
        tighten(BASE, document)


def test_a_base_is_what_it_is_tightened_from() -> None:
    once = tighten(BASE, DOCUMENT)
    again = changed("actions", "steering", "high", value=0.05)
    with pytest.raises(SafetyError, match="is not within"):
        tighten(once, again)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (changed("actions", value={}), "actions lacks 'steering'; it needs steering, acceleration"),
        (
            changed("actions", "steering", value={"z": 1, "a": 2, **STEERING}),
            "actions.steering has 'z'; it needs unit, low, high, rate_up, rate_down, and may have "
            "agree",
        ),
        (
            changed("state", value={"z": 1, "a": 2}),
            "state has 'z'; it needs nothing, and may have speed, pose",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_needed_and_what_is_allowed(document: Any, message: str) -> None:
    with pytest.raises(SafetyError) as raised:
        tighten(BASE, document)
    assert str(raised.value) == message
