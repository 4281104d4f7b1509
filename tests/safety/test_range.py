"""Levels 0 and 1 in the breakers: bounds to the ulp, tolerance, opening, recovery."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.safety.support import Rig
from wmrt.safety import Cause, Finding, Level, Proposal, State, StateLimit

ULP = float(np.spacing(np.float32(1.0)))
BAD = Finding("speed", "required")
STATES = (StateLimit("speed", "m/s", 0.0, 40.0), StateLimit("pose", "m", -5.0, 5.0))


def ramp(rig: Rig, goal: float) -> None:
    """Bring acceleration to ``goal`` by steps that are allowed."""
    for _ in range(8):  # of 0.25 each, from one end to the other
        last = rig.breakers.reference[1]
        rig.step((0.0, min(goal, last + 0.25) if goal > last else max(goal, last - 0.25)))
    assert rig.breakers.reference[1] == goal


def test_a_bound_itself_and_one_ulp_either_side() -> None:
    rig = Rig()
    ramp(rig, 1.0)
    for value in (1.0, 1.0 - ULP / 2):
        decision = rig.step((0.0, value))
        assert decision.action == (0.0, value)
        assert (decision.source, decision.tripped) == ("policy", frozenset())
    assert rig.step((0.0, 1.0 + ULP)).action == (0.0, 1.0)
    assert rig.breakers.stats()["counts"]["range_clamp"] == 0  # rounding, not an excess


def test_within_the_tolerance_is_clamped_and_counted() -> None:
    rig = Rig()
    ramp(rig, -1.0)
    decision = rig.step((0.0, -1.05))
    assert decision.action == (0.0, -1.0)
    assert (decision.source, decision.tripped) == ("clamped", frozenset())
    event = rig.breakers.events.snapshot()[-1]
    assert (event.cause, event.field, event.value, event.limit) == (
        Cause.RANGE_CLAMP, "acceleration", -1.05, -1.0,
    )  # fmt: skip
    assert (event.action_in, event.action_out) == ((0.0, -1.05), (0.0, -1.0))


@pytest.mark.parametrize("value", [1.1 + 1e-9, 1.2, -1.2, 1e30, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 1])
def test_beyond_the_tolerance_is_blocked(value: float, place: int) -> None:
    rig = Rig()
    rig.step((0.2, 0.2))
    action = (value, 0.2) if place == 0 else (0.2, value)
    decision = rig.step(action)
    assert decision.source == "fallback"
    assert decision.action == (0.0, 0.0)  # neutral is within reach
    assert (decision.after, decision.tripped) == (State.CLOSED, {Level.RANGE})
    event = rig.breakers.events.snapshot()[-1]
    kind = "above" if value > 0 else "below"
    assert event.kind == (kind if math.isfinite(value) else "nonfinite")
    assert event.field == ("steering", "acceleration")[place]


def test_three_trips_within_the_window_open() -> None:
    rig = Rig()
    assert rig.steps(2, (1.2, 0.0)).after is State.CLOSED
    assert rig.step((1.2, 0.0)).after is State.OPEN
    assert rig.causes()[-2:] == ["range", "range_repeated"]


@pytest.mark.parametrize(("gap", "state"), [(9, State.OPEN), (10, State.CLOSED)])
def test_the_window_is_two_seconds(gap: int, state: State) -> None:
    rig = Rig()
    for _ in range(2):
        rig.step((1.2, 0.0))
        rig.steps(gap, (0.0, 0.0))
    assert rig.step((1.2, 0.0)).after is state  # 2.0 s, or 2.2 s, after the first


def test_a_clock_that_jumps_back_does_not_stretch_the_window() -> None:
    rig = Rig()
    rig.steps(2, (1.2, 0.0))
    rig.step((0.0, 0.0), dt=-1000.0)
    rig.steps(25, (0.0, 0.0))
    assert rig.step((1.2, 0.0)).after is State.CLOSED


@pytest.mark.parametrize(
    ("predicted", "kind", "limit"),
    [
        ({"speed": 42.1}, "above", 42.0),
        ({"speed": -2.1}, "below", -2.0),
        ({"speed": math.nan}, "nonfinite", None),
        ({"speed": math.inf}, "nonfinite", None),
        ({"speed": 1.0, "pose": (0.0, -5.6, 0.0)}, "below", -5.5),
        ({"pose": (0.0, math.nan)}, "nonfinite", None),
        ({"speed": 10**400}, "above", 42.0),
    ],
)
def test_a_prediction_out_of_bounds_blocks(
    predicted: dict[str, object], kind: str, limit: float | None
) -> None:
    rig = Rig(state=STATES)
    decision = rig.step(Proposal((0.1, 0.1), predicted))  # type: ignore[arg-type]
    assert (decision.source, decision.tripped) == ("fallback", {Level.RANGE})
    event = rig.breakers.events.snapshot()[-1]
    assert (event.kind, event.limit) == (kind, limit)


@pytest.mark.parametrize(
    "predicted",
    [
        {},
        {"speed": None},
        {"speed": 42.0},
        {"speed": -2.0},
        {"speed": 7},
        {"pose": ()},
        {"else": 1e9},
    ],
)
def test_a_prediction_in_bounds_or_unknown_passes(predicted: dict[str, object]) -> None:
    decision = Rig(state=STATES).step(Proposal((0.1, 0.1), predicted))  # type: ignore[arg-type]
    assert (decision.source, decision.tripped) == ("policy", frozenset())


@pytest.mark.parametrize("action", [(), (0.1,), (0.1, 0.1, 0.1)])
def test_a_wrong_length_is_a_range_trip(action: tuple[float, ...]) -> None:
    decision = Rig().step(action)
    assert (decision.source, decision.tripped) == ("fallback", {Level.RANGE})


def test_a_fault_is_a_range_trip_whatever_the_action() -> None:
    for action in (None, (0.1, 0.1)):
        rig = Rig()
        decision = rig.step(Proposal(action, fault=Finding("policy", "ValueError")))
        assert (decision.source, decision.tripped) == ("fallback", {Level.RANGE})
        assert rig.breakers.events.snapshot()[-1].kind == "ValueError"


# Level 0, and the way back


def test_bad_input_opens_at_once_and_good_input_leads_back() -> None:
    rig = Rig()
    rig.step((0.2, 0.2))
    decision = rig.step((0.2, 0.2), faults=[BAD])
    assert (decision.source, decision.after) == ("fallback", State.OPEN)
    assert decision.tripped == {Level.VALIDITY}
    for _ in range(4):
        decision = rig.step((0.0, 0.1))
        assert (decision.source, decision.after) == ("fallback", State.OPEN)
    assert rig.step((0.0, 0.1)).after is State.HALF_OPEN  # the fifth good one
    for _ in range(19):
        decision = rig.step((0.0, 0.1))
        assert (decision.source, decision.after) == ("policy", State.HALF_OPEN)
    assert rig.step((0.0, 0.1)).after is State.CLOSED  # the twentieth clean one


def test_one_bad_step_starts_the_count_of_good_ones_anew() -> None:
    rig = Rig()
    rig.step(None, faults=[BAD])
    rig.steps(4, (0.0, 0.0))
    rig.step((0.0, 0.0), faults=[BAD])
    assert rig.steps(4, (0.0, 0.0)).after is State.OPEN
    rig.step((1.2, 0.0))  # good input, bad answer
    assert rig.steps(4, (0.0, 0.0)).after is State.OPEN
    rig.step(Proposal((0.0, 0.0), late=True))
    assert rig.steps(4, (0.0, 0.0)).after is State.OPEN
    rig.step(None)  # not asked
    assert rig.steps(4, (0.0, 0.0)).after is State.OPEN
    assert rig.step((0.0, 0.0)).after is State.HALF_OPEN


@pytest.mark.parametrize("what", ["range", "input", "vote"])
def test_half_open_opens_again(what: str) -> None:
    rig = Rig(latch_opens=9)
    rig.step(None, faults=[BAD])
    assert rig.steps(5, (0.0, 0.0)).after is State.HALF_OPEN
    rest = {"faults": [BAD]} if what == "input" else {}
    rest |= {"votes": [None, None]} if what == "vote" else {}
    decision = rig.step((1.2, 0.0) if what == "range" else (0.0, 0.0), **rest)
    assert (decision.before, decision.after) == (State.HALF_OPEN, State.OPEN)
    assert decision.source == "fallback"


def test_a_rate_trip_only_restarts_the_count_of_clean_steps() -> None:
    rig = Rig()
    rig.step(None, faults=[BAD])
    rig.steps(5, (0.0, 0.0))
    rig.steps(19, (0.0, 0.0))
    assert rig.step((0.0, 0.9)).after is State.HALF_OPEN
    assert rig.steps(19, (0.0, 0.0)).after is State.HALF_OPEN
    assert rig.step((0.0, 0.0)).after is State.CLOSED


def test_half_open_halves_ranges_and_rates() -> None:
    rig = Rig(clean_steps=1000)
    rig.step(None, faults=[BAD])
    rig.steps(5, (0.0, 0.0))
    last = rig.breakers.reference
    for _ in range(40):
        goal = (min(last[0] + 0.5, 1.0), max(last[1] - 0.6, -1.0))  # the full limits
        decision = rig.step(goal)
        assert decision.source == "clamped" and not decision.tripped
        assert decision.action[0] - last[0] <= 0.25 and last[1] - decision.action[1] <= 0.3
        last = decision.action
    assert last == (0.5, -0.5)


def test_half_open_from_outside_its_box_moves_in_at_the_halved_rate() -> None:
    rig = Rig(good_inputs=1, clean_steps=1000)
    ramp(rig, 1.0)
    rig.step((0.0, 1.0), faults=[BAD])  # fallback: 0.4
    assert rig.step((0.0, 0.4), dt=0.0).after is State.HALF_OPEN
    rig.breakers.engage("test", measured=(0.0, 1.0))
    rig.watch.restart((0.0, 1.0))
    seen = [rig.step((0.0, goal)).action[1] for goal in (1.0, 0.9, 0.7)]
    assert seen == pytest.approx([0.7, 0.5, 0.5])


def test_every_finding_is_recorded_up_to_a_bound() -> None:
    rig = Rig()
    rig.step(None, faults=[BAD] * 40, notes=[Finding("gap", "empty")] * 40)
    assert rig.causes() == ["input"] * 16 + ["note"] * 16
    assert rig.breakers.stats()["trips"]["validity"] == 1


def test_notes_alone_do_not_stop_the_policy() -> None:
    rig = Rig()
    assert rig.step((0.1, 0.1), notes=[Finding("gap", "empty")]).source == "policy"
    assert rig.breakers.events.snapshot()[-1].level is Level.VALIDITY
