"""The rule driver: pure, finite, within its limits, and sensible where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from wmrt.envs.expert import RATE_SHARE
from wmrt.envs.rules import BLIND_SPEED, idm, rule_action
from wmrt.envs.state import ACTIONS, GROUPS, LANES

DELTAS = np.array([dim.max_delta(0.1) for dim in ACTIONS.dims])
UP, DOWN = RATE_SHARE * DELTAS[:, 0], RATE_SHARE * DELTAS[:, 1]


def state(lane="middle", **changes):
    base = {"ego_speed": 25.0, "lane_offset": 0.0, "heading": 0.0, "lane": lane}
    for group in GROUPS:
        base[f"{group}_gap"], base[f"{group}_dv"] = 100.0, 0.0
    return {**base, **changes}


def settle(at, steps=10):
    """The action after the rate limit has been walked out."""
    action = np.zeros(2, np.float32)
    for _ in range(steps):
        action = rule_action(at, action)
    return action


def test_any_state_gives_a_finite_action_within_60_percent_of_the_rate_limits(seed):
    rng = np.random.default_rng(seed)
    for _ in range(500):
        at = state(
            lane=rng.choice([*LANES, "unknown"]),
            ego_speed=float(rng.uniform(0, 40)),
            lane_offset=float(rng.uniform(-2.5, 2.5)),
            heading=float(rng.uniform(-0.5, 0.5)),
        )
        for group in GROUPS:
            known = rng.random() < 0.7
            at[f"{group}_gap"] = float(rng.choice([0, 100, rng.uniform(0, 100)])) if known else None
            at[f"{group}_dv"] = float(rng.uniform(-20, 20)) if known else None
        previous = rng.uniform(-1, 1, 2).astype(np.float32)
        before = dict(at)
        action = rule_action(at, previous)
        assert at == before
        assert action.shape == (2,) and action.dtype == np.float32
        assert np.isfinite(action).all() and (np.abs(action) <= 1).all()
        change = action.astype(np.float64) - previous
        assert (change <= UP + 1e-6).all() and (change >= -DOWN - 1e-6).all()
        np.testing.assert_array_equal(action, rule_action(at, previous))


def test_open_road_and_wall():
    assert settle(state(ego_speed=15.0))[1] > 0.4
    assert settle(state(front_gap=12.0, front_dv=-10.0, left_front_gap=0.0, right_front_gap=0.0))[
        1
    ] == pytest.approx(-1.0)
    assert settle(state())[0] == 0.0


@pytest.mark.parametrize(("side", "sign"), [("left", -1), ("right", 1)])
def test_overtakes_on_the_free_side(side, sign):
    other = "right" if side == "left" else "left"
    at = state(front_gap=30.0, front_dv=-4.0, **{f"{other}_front_gap": 5.0})
    assert np.sign(settle(at)[0]) == sign
    blocked = {**at, f"{side}_rear_gap": 6.0}
    assert settle(blocked)[0] == 0.0
    unseen = {**at, f"{side}_rear_gap": None, f"{side}_rear_dv": None}
    assert settle(unseen)[0] == 0.0


@pytest.mark.parametrize(("lane", "side"), [("left", "left"), ("right", "right")])
def test_never_steers_off_the_road(lane, side):
    other = "right" if side == "left" else "left"
    at = state(lane, front_gap=20.0, front_dv=-5.0, **{f"{other}_front_gap": 3.0})
    assert settle(at)[0] == 0.0


def test_change_under_way_goes_on_unless_someone_is_there():
    moving = state(lane_offset=1.0, heading=0.11)
    assert rule_action(moving, (0.0, 0.0))[0] > -0.2
    occupied = {**moving, "right_rear_gap": 3.0}
    assert settle(occupied)[0] < -0.4


def test_blind_in_front_is_slow():
    blind = {"front_gap": None, "front_dv": None}
    assert settle(state(ego_speed=BLIND_SPEED + 4, **blind))[1] < 0.0
    assert settle(state(ego_speed=BLIND_SPEED - 8, **blind))[1] == 0.0


def test_idm_equilibrium():
    """At the wanted speed on an open road nothing is asked; nearing or close means braking."""
    assert idm(30.0, 30.0, 100.0, 0.0) == 0.0
    assert idm(25.0, 30.0, 20.0, 0.0) < idm(25.0, 30.0, 40.0, 0.0) < idm(25.0, 30.0, 100.0, 0.0)
    assert idm(25.0, 30.0, 40.0, 5.0) < idm(25.0, 30.0, 40.0, 0.0)
