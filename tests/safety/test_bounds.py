"""One unit in the last place either side of every bound there is, in float64 and as proposed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tests.safety.support import DRIVING, ODD, PERIOD, Rig, limits
from wmrt.core.types import ActionSpec
from wmrt.safety import Cause, Finding, Level, Proposal, State, StateLimit
from wmrt.safety.consensus import agrees, vote
from wmrt.safety.judge import clamp_to_box, predicted_fault, range_fault, rate_fault, reach
from wmrt.safety.limits import Box

SPECS = pytest.mark.parametrize("spec", [DRIVING, ODD], ids=["driving", "odd"])
BAD = Finding("speed", "required")


def out(value: float) -> float:
    """The next float64 away from zero."""
    return math.nextafter(value, math.copysign(math.inf, value))


# Level 1


@SPECS
@pytest.mark.parametrize("side", [-1, 1])
def test_the_tolerated_range(spec: ActionSpec, side: int) -> None:
    boxes = limits(spec).boxes(1.0)
    for place, box in enumerate(boxes):
        action = [0.0] * len(spec)
        action[place] = box.tolerated_high if side > 0 else box.tolerated_low
        assert range_fault(action, boxes, spec.names) is None
        action[place] = out(action[place])
        bound = box.high if side > 0 else box.low
        kind = "above" if side > 0 else "below"
        assert range_fault(action, boxes, spec.names) == (
            spec.names[place], kind, action[place], bound,
        )  # fmt: skip


def test_a_value_at_its_bound_is_left_as_it_is() -> None:
    box = Box(-1.0, 0.0, -1.1, 0.1)
    assert math.copysign(1.0, clamp_to_box((-0.0,), (box,))[0]) == -1.0
    box = Box(-0.0, 1.0, -0.1, 1.1)
    assert math.copysign(1.0, clamp_to_box((0.0,), (box,))[0]) == 1.0
    assert clamp_to_box((-1e-320, 1.0), (box, box)) == (0.0, 1.0)


@pytest.mark.parametrize("wrap", [float, lambda v: (0.0, v), lambda v: (v, 0.0)])
@pytest.mark.parametrize(("bound", "kind"), [(42.0, "above"), (-2.0, "below")])
def test_a_predicted_bound(wrap: Any, bound: float, kind: str) -> None:
    bounds = limits(state=(StateLimit("speed", "m/s", 0.0, 40.0),)).state_bounds()
    assert bounds == (("speed", -2.0, 42.0),)
    assert predicted_fault({"speed": wrap(bound)}, bounds) is None
    beyond = out(bound)
    assert predicted_fault({"speed": wrap(beyond)}, bounds) == ("speed", kind, beyond, bound)


def test_a_predicted_whole_number_is_compared_like_any_other() -> None:
    bounds = (("count", 0.0, 7.0),)
    assert predicted_fault({"count": 7}, bounds) is None
    assert predicted_fault({"count": 8}, bounds) == ("count", "above", 8, 7.0)
    assert predicted_fault({"count": -1}, bounds) == ("count", "below", -1, 0.0)
    assert predicted_fault({"count": True}, bounds) is None


def test_every_predicted_field_is_looked_at() -> None:
    bounds = (("a", 0.0, 1.0), ("b", 0.0, 1.0), ("c", 0.0, 1.0))
    for first in ({}, {"a": None}, {"a": 0.5}, {"a": (0.5, 0.5)}):
        found = predicted_fault({**first, "b": 0.5, "c": 2.0}, bounds)
        assert found == ("c", "above", 2.0, 1.0)


# Level 2


@pytest.mark.parametrize("tolerance", [0.0, 0.1])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_rate_with_its_tolerance(tolerance: float, side: int) -> None:
    up, down = 0.3, 0.6
    limit = up if side > 0 else down
    change = side * limit * (1.0 + tolerance)
    assert rate_fault((change,), (0.0,), ((up, down),), tolerance, "step", ("x",)) is None
    beyond = out(change)
    found = rate_fault((beyond,), (0.0,), ((up, down),), tolerance, "step", ("x",))
    assert found == ("x", "step", beyond, side * limit)


def test_a_step_of_exactly_the_limit_is_made_in_full() -> None:
    assert reach((1.0,), (0.25,), ((0.5, 9.0),)) == (0.75,)
    assert reach((-1.0,), (-0.25,), ((9.0, 0.5),)) == (-0.75,)


@pytest.mark.parametrize("side", [-1, 1])
def test_what_is_reached_is_never_past_the_goal(side: int) -> None:
    """Here goal minus reference is rounded up to the limit itself."""
    goal = side * (0.5 - 2.0**-54)
    (value,) = reach((goal,), (side * -0.75,), ((1.25, 1.25),))
    assert value == side * float(np.nextafter(np.float32(0.5), np.float32(0)))


@SPECS
def test_the_whole_way_through_every_rate_bound(spec: ActionSpec) -> None:
    for place, dim in enumerate(spec.dims):
        for side, delta in zip((1, -1), dim.max_delta(PERIOD), strict=True):
            if delta * 1.1 >= 1.0:  # the box ends before the rate does
                continue
            for change, tripped in ((delta * 1.1, set()), (out(delta * 1.1), {Level.RATE})):
                rig = Rig(spec, wall_tolerance=0.19)
                action = [0.0] * len(spec)
                action[place] = side * change
                assert rig.step(tuple(action)).tripped == tripped, (dim.name, side)


# Level 3


@pytest.mark.parametrize("tolerance", [0.0, 0.25])
def test_agreement(tolerance: float) -> None:
    for sign in (-1, 1):
        assert agrees((0.0, sign * tolerance), (0.0, 0.0), (0.0, tolerance))
        beyond = sign * math.nextafter(tolerance, 1.0)
        assert not agrees((0.0, beyond), (0.0, 0.0), (0.0, tolerance))
        assert not agrees((0.0, 0.0), (0.0, beyond), (0.0, tolerance))
    verdict = vote(((0.0,), (tolerance,), (math.nextafter(tolerance, 1.0),)), (tolerance,))
    assert verdict.out == 2


# Windows and counts


@pytest.mark.parametrize(("extra", "state"), [(0, State.OPEN), (1, State.CLOSED)])
def test_the_trip_window_to_the_nanosecond(extra: int, state: State) -> None:
    rig = Rig(trip_limit=2)
    rig.step((1.2, 0.0))
    assert rig.step((1.2, 0.0), dt=2.0 + extra * 1e-9).after is state


@pytest.mark.parametrize(("extra", "state"), [(0, State.LATCHED), (1, State.OPEN)])
def test_the_latch_window_to_the_nanosecond(extra: int, state: State) -> None:
    rig = Rig(trip_limit=1, latch_opens=2, good_inputs=1, clean_steps=1)
    rig.step((1.2, 0.0))
    rig.steps(2, (0.0, 0.0))
    assert rig.breakers.state is State.CLOSED
    assert rig.step((1.2, 0.0), dt=29.8 + extra * 1e-9).after is state


@pytest.mark.parametrize("name", ["good_inputs", "clean_steps", "heal_steps"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_so_many_steps_and_not_one_fewer(name: str, count: int) -> None:
    rig = Rig(**{"good_inputs": 1, name: count})
    agreed = [(0.0, 0.0), (0.0, 0.0)]
    votes = agreed if name == "heal_steps" else None
    if name == "heal_steps":
        rig.step((0.0, 0.0), votes=[None, (0.0, 0.0)])
    else:
        rig.step(None, faults=[BAD])
    if name == "clean_steps":
        assert rig.step((0.0, 0.0)).after is State.HALF_OPEN
    before = rig.breakers.state
    for _ in range(count - 1):
        assert rig.step((0.0, 0.0), votes=votes).after is before
    assert rig.step((0.0, 0.0), votes=votes).after is not before


# Every vector function takes vectors of one length, and says so


@pytest.mark.parametrize("wrong", [(0.0,), (0.0, 0.0, 0.0)])
def test_vectors_of_other_lengths(wrong: tuple[float, ...]) -> None:
    boxes, names = limits().boxes(1.0), DRIVING.names
    right, deltas = (0.0, 0.0), limits().deltas(PERIOD)
    for call in (
        lambda: range_fault(wrong, boxes, names),
        lambda: clamp_to_box(wrong, boxes),
        lambda: rate_fault(wrong, right, deltas, 0.1, "step", names),
        lambda: rate_fault(right, wrong, deltas, 0.1, "step", names),
        lambda: reach(wrong, right, deltas),
        lambda: reach(right, wrong, deltas),
        lambda: agrees(wrong, right, (0.1, 0.1)),
        lambda: vote((wrong, wrong, wrong), (0.1, 0.1)),
    ):
        with pytest.raises(ValueError, match=r"argument \d is (shorter|longer)"):
            call()


# NaN and infinities in every place that takes a number


@SPECS
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_place_lets_a_number_through_that_is_none(spec: ActionSpec, bad: float) -> None:
    size = len(spec)
    states = (StateLimit("speed", "m/s", 0.0, 40.0), StateLimit("pose", "m", -5.0, 5.0))
    rest = tuple(limits(spec).rest)
    for place in range(size):
        poisoned = (*rest[:place], bad, *rest[place + 1 :])
        rig = Rig(spec, state=states)
        assert rig.step(poisoned).tripped == {Level.RANGE}
        for n in range(3):  # in a vote: the channel counts as failed
            votes: list[Any] = [rest, rest, rest]
            votes[n] = poisoned
            decision = rig.step(votes[0], votes=votes[1:])
            assert decision.action == rest and decision.after is State.DEGRADED
        decision = rig.step(None, fallback=lambda p=poisoned: p)
        assert decision.action == rest
        assert rig.breakers.events.snapshot()[-1].cause is Cause.FALLBACK
    for predicted in ({"speed": bad}, {"pose": (0.0, bad)}, {"pose": (bad, 0.0)}):
        rig = Rig(spec, state=states)
        assert rig.step(Proposal(rest, predicted)).tripped == {Level.RANGE}


@pytest.mark.parametrize("field", ["low", "high", "rate_up", "rate_down", "agree"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 10**400, None, "1", True])
def test_no_limit_is_such_a_number(field: str, bad: Any) -> None:
    from wmrt.core.errors import SafetyError
    from wmrt.safety import Limits

    document = limits().to_json()
    document["dims"][0][field] = bad
    with pytest.raises(SafetyError):
        Limits.from_json(document)


# Chatter at level 1


@pytest.mark.parametrize(("part", "trips"), [(1.1, 0), (math.nextafter(1.1, 2), 3)])
def test_chatter_at_the_tolerated_bound(part: float, trips: int) -> None:
    rig = Rig(trip_window=0.2)
    for value in (0.25, 0.5, 0.75, 1.0):
        rig.step((0.0, value))
    for n in range(6):
        rig.step((0.0, part if n % 2 else 1.0))
        rig.step((0.0, 1.0))
    assert rig.breakers.stats()["trips"]["range"] == trips
    assert rig.breakers.state is State.CLOSED


def test_limits_that_are_tighter_hold_in_the_same_way() -> None:
    made = limits()
    dims = (dataclasses.replace(made.dims[0], low=-0.03, high=0.03), made.dims[1])
    box = dataclasses.replace(made, dims=dims).boxes(1.0)[0]
    assert (box.low, box.high) == pytest.approx((-0.5, 0.5))
    assert range_fault((box.tolerated_high, 0.0), (box, made.boxes(1.0)[1]), ("a", "b")) is None
    beyond = out(box.tolerated_high)
    assert range_fault((beyond, 0.0), (box, made.boxes(1.0)[1]), ("a", "b")) is not None
