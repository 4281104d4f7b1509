"""The rule-based driver: IDM (Treiber 2000) and MOBIL (Kesting 2007) from the state dict alone.

It sees what the model sees and remembers nothing: whether a lane change is under way is read from
offset and heading. Accelerations and thresholds are those of highway-env's own drivers; a time gap
of 1.0 s and 2 m at rest instead of its 1.5 s and
5 m raise the mean return from 22.1 to 22.5 without a collision (40 seeds). It wants 30 m/s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wmrt.envs.expert import RATE_SHARE
from wmrt.envs.motion import steering_angle
from wmrt.envs.state import ACTIONS, LANE_WIDTH, LANES, PERIOD, RANGE

WANTED_SPEED = 30.0  # m/s
BLIND_SPEED = 22.0  # m/s, traffic's own: the most that is driven while the front sensor is off
TIME_GAP = 1.0  # s
JAM_DISTANCE = 7.0  # m between centres: 2 m between bumpers
ACCELERATION = 3.0  # m/s^2
COMFORT_BRAKING = 5.0  # m/s^2
SAFE_BRAKING = 2.0  # m/s^2, the most a lane change may ask of the new follower
GAIN = 0.2  # m/s^2, advantage that starts a lane change
GAIN_UNDER_WAY = 0.1  # m/s^2, advantage below which a change that has hardly begun is given up
ALONGSIDE = 8.0  # m between centres: no room to move over

_LOOK_AHEAD = 0.7  # s


def idm(speed: float, wanted: float, gap: float, closing: float) -> float:
    """IDM acceleration, m/s^2: ``gap`` m between centres, ``closing`` m/s (positive = nearing).

    A gap at the sensors' range or beyond is an open road.
    """
    acceleration = ACCELERATION * (1.0 - (max(speed, 0.0) / wanted) ** 4)
    if gap < RANGE:
        pull = speed * closing / (2.0 * math.sqrt(ACCELERATION * COMFORT_BRAKING))
        desired = max(JAM_DISTANCE + speed * TIME_GAP + pull, 0.0)
        acceleration -= ACCELERATION * (desired / max(gap, 1.0)) ** 2
    return acceleration


def _ahead(state: Mapping[str, Any], group: str, speed: float) -> float:
    """IDM acceleration behind the car a group reports; slow and never faster while it is off."""
    gap, dv = state[f"{group}_gap"], state[f"{group}_dv"]
    if gap is None or dv is None:
        return min(idm(speed, BLIND_SPEED, RANGE, 0.0), 0.0)
    return idm(speed, WANTED_SPEED, gap, -dv)


def _free_beside(state: Mapping[str, Any], side: str, speed: float) -> bool:
    """Whether a side's sensors are on, nobody is alongside, and its follower need not brake."""
    rear, rear_dv = state[f"{side}_rear_gap"], state[f"{side}_rear_dv"]
    front = state[f"{side}_front_gap"]
    if rear is None or rear_dv is None or front is None or min(front, rear) < ALONGSIDE:
        return False
    return idm(speed + rear_dv, WANTED_SPEED, rear, rear_dv) > -SAFE_BRAKING


def _choose_side(state: Mapping[str, Any], lane: int, ahead: float, speed: float) -> int:
    """-1, 0 or +1: the lane to steer to, relative to the present one.

    ``ahead`` is where the car will be in 0.7 s, m from its lane's centre.
    """
    keep = _ahead(state, "front", speed)
    best, shift_best = 0.0, 0
    for shift, side in ((-1, "left"), (1, "right")):
        if not 0 <= lane + shift < len(LANES):
            continue
        if ahead * shift > LANE_WIDTH / 2:  # the car is on its way over: only a car there stops it
            gaps = (state[f"{side}_front_gap"], state[f"{side}_rear_gap"])
            if all(gap is None or gap >= ALONGSIDE for gap in gaps):
                return shift
            continue
        if not _free_beside(state, side, speed):
            continue
        gain = _ahead(state, f"{side}_front", speed) - keep
        needed = GAIN_UNDER_WAY if ahead * shift > 0.3 else GAIN
        if gain > needed and gain > best:
            best, shift_best = gain, shift
    return shift_best


def rule_action(
    state: Mapping[str, Any], previous_action: Sequence[float] | np.ndarray
) -> np.ndarray:
    """What the rules do in a state; a pure function.

    Args:
        state: the fields of `highway_schema`; None where a sensor is off (then: no faster than
            22 m/s, no lane change to that side). An unknown lane keeps the car in its lane.
        previous_action: the action executed last, normalised; the result stays within 60% of the
            actuators' rate limits of it.

    Returns:
        float32[2], normalised (steering, acceleration).
    """
    speed, offset, heading = state["ego_speed"], state["lane_offset"], state["heading"]
    ahead = offset + _LOOK_AHEAD * speed * math.sin(heading)
    acceleration = _ahead(state, "front", speed)
    shift = 0
    if state["lane"] in LANES:
        shift = _choose_side(state, LANES.index(state["lane"]), ahead, speed)
    if shift:
        side = "left" if shift < 0 else "right"
        acceleration = min(acceleration, _ahead(state, f"{side}_front", speed))
    steering = float(steering_angle(LANE_WIDTH * shift - offset, heading, speed))
    action = []
    wanted = (steering, acceleration)
    for dim, value, last in zip(ACTIONS.dims, wanted, previous_action, strict=True):
        up, down = (RATE_SHARE * delta for delta in dim.max_delta(PERIOD))
        last = float(last)
        value = min(max(dim.to_normalised(value), last - down), last + up)
        action.append(min(max(value, -1.0), 1.0))
    return np.array(action, np.float32)
