"""Level 2: per step and by the clock, up and down, to the ulp; floods and clocks that lie."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.safety.support import DRIVING, ODD, PERIOD, Rig
from wmrt.core.types import ActionSpec
from wmrt.safety import Cause, Level, State

UP, DOWN = 0.3, 0.6  # acceleration, normalised, per 0.1 s
ULP = float(np.spacing(np.float32(1.0)))  # of float32 just below 2; no action has a larger one


@pytest.mark.parametrize(("sign", "limit"), [(1, UP), (-1, DOWN)])
def test_the_limit_itself_and_one_ulp_either_side(sign: int, limit: float) -> None:
    single = np.float32(limit)
    below, above = np.nextafter(single, np.float32([0, 2]))
    for value in (float(below), float(single), float(above), limit):
        rig = Rig()
        decision = rig.step((0.0, sign * value))
        assert decision.source == "policy" and not decision.tripped
        assert abs(decision.action[1]) == (value if value == below else below)
        assert abs(decision.action[1]) <= limit  # exactly: neither 0.3 nor 0.6 is a float32


@pytest.mark.parametrize(("sign", "limit"), [(1, UP), (-1, DOWN)])
@pytest.mark.parametrize(
    ("part", "source"), [(1.05, "clamped"), (1.099, "clamped"), (1.101, "blocked")]
)
def test_tolerance(sign: int, limit: float, part: float, source: str) -> None:
    rig = Rig(wall_tolerance=0.1)
    decision = rig.step((0.0, sign * limit * part))
    assert decision.source == source
    if source == "clamped":
        assert decision.action[1] == pytest.approx(sign * limit, abs=ULP)
        assert not decision.tripped and rig.causes() == ["rate_clamp"]
    else:
        assert decision.action == (0.0, 0.0)  # the last one, moved towards neutral: it is neutral
        assert decision.tripped == {Level.RATE} and decision.after is State.CLOSED
    event = rig.breakers.events.snapshot()[-1]
    assert event.field == "acceleration"
    assert event.action_in == (0.0, sign * limit * part)


def test_a_block_moves_towards_the_fallback_at_the_rate_limit() -> None:
    rig = Rig()
    for value in (0.3, 0.6, 0.9):
        rig.step((0.0, value))
    decision = rig.step((0.0, -0.9))
    assert decision.source == "blocked"
    assert decision.action[1] == pytest.approx(0.3, abs=ULP)


def test_violation_then_ramp() -> None:
    rig = Rig()
    assert rig.step((0.0, 0.9)).source == "blocked"
    seen = [rig.step((0.0, value)).action[1] for value in (0.3, 0.6, 0.9, 1.0)]
    assert seen == pytest.approx([0.3, 0.6, 0.9, 1.0], abs=2 * ULP)
    assert rig.breakers.stats()["trips"]["rate"] == 1


@pytest.mark.parametrize("spec", [DRIVING, ODD])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_ramp_to_1_2_times_any_limit_trips(spec: ActionSpec, sign: int) -> None:
    for place in range(len(spec)):
        # the range: within the rate limits, until beyond 1.1
        rig = Rig(spec)
        goal = list(rig.breakers.reference)
        step = 0.9 * spec.dims[place].max_delta(PERIOD)[0 if sign > 0 else 1]
        while abs(goal[place]) < 1.2:
            goal[place] += sign * min(step, 0.05)
            decision = rig.step(tuple(goal))
        assert Level.RANGE in decision.tripped
        # the rate: every step from the last action by 1.2 times what is allowed
        rig = Rig(spec)
        delta = 1.2 * spec.dims[place].max_delta(PERIOD)[0 if sign > 0 else 1]
        goal = list(rig.breakers.reference)
        goal[place] = sign * min(delta, 1.0)
        if delta < 1.0:
            assert rig.step(tuple(goal)).tripped == {Level.RATE}


@pytest.mark.parametrize("part", [1.2, 1.5, 3.0])
def test_a_ramp_too_fast_by_the_clock_trips(part: float) -> None:
    """Steps of the nominal size, sent faster than the period."""
    rig = Rig()
    sources = []
    for n in range(1, 4):
        decision = rig.step((0.0, -n * 0.3), dt=PERIOD / 2 / part)  # 0.3 in 50 ms would be allowed
        sources.append(decision.source)
    assert "blocked" in sources
    assert rig.breakers.events.snapshot()[-1].kind in ("clock", "step")


def test_a_flooding_sender_gets_no_further_than_the_clock_allows() -> None:
    rig = Rig()
    rig.step((0.0, 0.0))
    for _ in range(100):  # 1 ms apart
        rig.step((0.0, min(1.0, rig.breakers.reference[1] + 0.3)), dt=0.001)
    assert abs(rig.breakers.reference[1]) <= 0.1 / PERIOD * UP + 1e-12
    assert rig.breakers.stats()["trips"]["rate"] >= 90


def test_a_short_interval_after_a_long_one_is_no_trip() -> None:
    """A loop that keeps its phase after an overrun."""
    rig = Rig()
    value = 0.0
    for dt in (0.1, 0.15, 0.05, 0.1, 0.19, 0.01):
        value -= 0.15
        decision = rig.step((0.0, max(value, -1.0)), dt=dt)
        assert not decision.tripped, dt


def test_a_late_step_gains_nothing_per_step() -> None:
    rig = Rig()
    rig.step((0.0, 0.0))
    assert rig.step((0.0, 0.32), dt=5.0).action[1] == pytest.approx(UP, abs=ULP)


def test_two_periods_per_step_can_be_had() -> None:
    rig = Rig(step_periods=2.0)
    rig.step((0.0, 0.0))
    assert rig.step((0.0, 0.6), dt=0.2).action[1] == pytest.approx(0.6, abs=2 * ULP)
    assert rig.step((0.0, 0.9), dt=0.1).action[1] == pytest.approx(0.9, abs=2 * ULP)


@pytest.mark.parametrize("dt", [0.0, -1e-9, -5.0])
def test_a_clock_that_stands_or_runs_back_allows_no_change(dt: float) -> None:
    rig = Rig()
    rig.step((0.0, 0.2))
    before = rig.breakers.reference
    assert rig.step((0.0, 0.3), dt=dt).action == before
    assert (rig.breakers.events.snapshot()[0].cause is Cause.CLOCK) == (dt < 0)
    assert rig.step((0.0, 0.3)).action[1] == pytest.approx(0.3, abs=ULP)  # time goes on from there


def test_the_first_command_counts_one_period_whatever_the_clock() -> None:
    for start in (0.0, 12345.0, -7.0):
        rig = Rig()
        assert rig.step((0.0, 0.3), dt=start).action[1] == pytest.approx(0.3, abs=ULP)
        assert Rig().step((0.0, 0.4), dt=start).source == "blocked"


def test_the_first_command_after_reset_counts_from_neutral_or_from_the_measured_action() -> None:
    rig = Rig(neutral=(0.0, -0.2))
    assert rig.breakers.reference == pytest.approx((0.0, -0.2), abs=ULP)
    rig.steps(3, (0.0, 0.0))
    rig.breakers.reset()
    rig.watch.restart(rig.breakers.reference)
    assert rig.step((0.0, 0.1)).action[1] == pytest.approx(0.1, abs=ULP)
    rig.breakers.reset((0.0, 0.9))
    rig.watch.restart(rig.breakers.reference)
    assert rig.step((0.0, 1.0)).action[1] == 1.0


def test_sign_flip_through_zero() -> None:
    rig = Rig()
    rig.step((0.0, 0.25))
    assert rig.step((0.0, -0.25)).action[1] == -0.25
    assert rig.step((0.0, 0.05)).action[1] == pytest.approx(0.05, abs=ULP)  # up by 0.3
    assert rig.step((0.0, 0.45)).source == "blocked"  # up by 0.4


def test_negative_zero_is_zero() -> None:
    rig = Rig()
    decision = rig.step((-0.0, 0.0))
    assert decision.source == "policy" and decision.action == (0.0, 0.0)
    assert math.copysign(1.0, decision.action[0]) == -1.0  # as it was proposed
    assert rig.step((0.5, -0.0)).source == "policy"


@pytest.mark.parametrize("amplitude", [0.149, 0.151, 0.165 - 1e-6, 0.166])
def test_chatter_at_the_threshold(amplitude: float) -> None:
    """A square wave whose rising edge is just below, or just above, the limit of 0.3."""
    rig = Rig()
    rig.step((0.0, -amplitude))
    for n in range(200):
        rig.step((0.0, amplitude if n % 2 == 0 else -amplitude))
    trips = rig.breakers.stats()["trips"]["rate"]
    assert trips == 0 if amplitude < 0.165 else trips >= 50
    assert rig.breakers.state is State.CLOSED


def test_a_rate_that_was_rounded_up_onto_a_float32_still_moves() -> None:
    """0.25 + (0.5 - 2**-54) is 0.75 in float64: allowed to the eye, one ulp over in truth."""
    from wmrt.safety.judge import reach

    up = 0.5 - 2.0**-54
    (value,) = reach((1.0,), (0.25,), ((up, up),))
    assert value == float(np.nextafter(np.float32(0.75), np.float32(0)))
    (value,) = reach((-1.0,), (-0.25,), ((up, up),))
    assert value == -float(np.nextafter(np.float32(0.75), np.float32(0)))


def test_a_proposal_in_float64_is_rounded_not_clamped() -> None:
    rig = Rig()
    decision = rig.step((0.1, 0.1))
    assert decision.source == "policy"
    assert decision.action == pytest.approx((0.1, 0.1), abs=1e-8)
    assert rig.causes() == []
