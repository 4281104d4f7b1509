"""What the car perceives: the typed state, its schema, and its Gymnasium observation.

Lengths are metres, speeds m/s, angles rad. y grows to the right: lane 0 is the left one, a positive
offset, heading or steering is to the right. A gap is the distance between vehicle centres along the
road, so a car alongside has a gap under one vehicle length (5 m). A vehicle is in every lane that
any part of it is in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from wmrt.core.errors import StateError
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.schema import StateSchema, category, numeric

PERIOD = 0.1  # s, one control step
LANES = ("left", "middle", "right")
LANE_WIDTH = 4.0
RANGE = 100.0  # m, reach of the sensors
#: Half a lane, and the part of a vehicle that may reach in: half its width (1 m).
IN_LANE = LANE_WIDTH / 2 + 1.0

GROUPS = ("left_front", "left_rear", "front", "rear", "right_front", "right_rear")
NUMERIC: tuple[tuple[str, float, float], ...] = (
    ("ego_speed", 0.0, 40.0),
    ("lane_offset", -2.5, 2.5),
    ("heading", -0.5, 0.5),
    *(
        bounds
        for group in GROUPS
        for bounds in ((f"{group}_gap", 0.0, RANGE), (f"{group}_dv", -20.0, 20.0))
    ),
)
NUMERIC_NAMES = tuple(name for name, _, _ in NUMERIC)

#: (steering, acceleration). The steering range turns 25 m/s into 7.5 m/s^2 of lateral acceleration.
ACTIONS = ActionSpec(
    (
        ActionDim("steering", "rad", -0.06, 0.06, rate_up=0.30, rate_down=0.30),
        ActionDim("acceleration", "m/s^2", -5.0, 5.0, rate_up=15.0, rate_down=30.0),
    )
)


class Car(NamedTuple):
    """One vehicle in road coordinates: m, m, m/s along the road, rad, and its lane index."""

    x: float
    y: float
    vx: float
    heading: float
    lane: int


@functools.cache
def highway_schema() -> StateSchema:
    """The schema of `wmrt/Highway-v0`: 16 fields, at most 12 of them unknown."""
    fields = {
        "ego_speed": numeric("m/s", 0.0, 40.0, decimals=2, required=True),
        "lane_offset": numeric("m", -2.5, 2.5, decimals=3, required=True),
        "heading": numeric("rad", -0.5, 0.5, decimals=3, required=True),
        "lane": category(LANES),
    }
    for group in GROUPS:
        fields[f"{group}_gap"] = numeric("m", 0.0, RANGE, decimals=2)
        fields[f"{group}_dv"] = numeric("m/s", -20.0, 20.0, decimals=2)
    return StateSchema(fields, neutral=(0.0, 0.0), max_unknown=12, name="highway")


def _nearest(ego: Car, others: Sequence[tuple[float, float, float]]) -> list[list[float]]:
    """[front gap, front dv, rear gap, rear dv] of each lane."""
    slots = [[RANGE, 0.0, RANGE, 0.0] for _ in LANES]
    for x, y, vx in others:
        dx = x - ego.x
        if not -RANGE < dx < RANGE:
            continue
        for lane, slot in enumerate(slots):
            if abs(y - LANE_WIDTH * lane) > IN_LANE:
                continue
            if dx >= 0:
                if dx < slot[0]:
                    slot[0], slot[1] = dx, vx - ego.vx
            elif -dx < slot[2]:
                slot[2], slot[3] = -dx, vx - ego.vx
    return slots


def perceive(
    ego: Car,
    speed: float,
    others: Sequence[tuple[float, float, float]],
    hidden: Collection[str] = (),
) -> dict[str, Any]:
    """The state dict of the driven car.

    Args:
        ego: the driven car. ``speed`` is its speed along its own heading, m/s.
        others: (x, y, vx) of every other vehicle.
        hidden: sensor groups that are off; both of their fields are None.

    Returns:
        the fields of `highway_schema` in order. Nobody within 100 m: gap 100, dv 0. No lane on that
        side: gap 0, dv 0.
    """
    lane = ego.lane
    slots = _nearest(ego, others)
    state: dict[str, Any] = {
        "ego_speed": speed,
        "lane_offset": ego.y - LANE_WIDTH * lane,
        "heading": ego.heading,
        "lane": LANES[lane],
    }
    for prefix, side in (("left_", lane - 1), ("", lane), ("right_", lane + 1)):
        known = slots[side] if 0 <= side < len(LANES) else [0.0, 0.0, 0.0, 0.0]
        for end, at in (("front", 0), ("rear", 2)):
            group = prefix + end
            off = group in hidden
            state[f"{group}_gap"] = None if off else known[at]
            state[f"{group}_dv"] = None if off else known[at + 1]
    return state


_LOW = np.array([low for _, low, _ in NUMERIC], np.float32)
_HIGH = np.array([high for _, _, high in NUMERIC], np.float32)


def observation_space() -> spaces.Dict:
    """Float32 arrays: ``numeric``[15] (`NUMERIC_NAMES`), ``valid``[15] and ``lane``[3] of 0/1."""
    return spaces.Dict(
        {
            "lane": spaces.Box(0.0, 1.0, (len(LANES),), np.float32),
            "numeric": spaces.Box(_LOW, _HIGH, dtype=np.float32),
            "valid": spaces.Box(0.0, 1.0, (len(NUMERIC),), np.float32),
        }
    )


def observation(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The state dict as arrays of `observation_space`: an unknown field is 0 with ``valid`` 0."""
    raw = [state[name] for name in NUMERIC_NAMES]
    valid = np.array([value is not None for value in raw], np.float32)
    values = np.array([0.0 if value is None else value for value in raw], np.float32)
    lane = np.zeros(len(LANES), np.float32)
    lane[LANES.index(state["lane"])] = 1.0
    return {"lane": lane, "numeric": np.clip(values, _LOW, _HIGH), "valid": valid}


def state_from_observation(observed: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Inverse of `observation` (up to float32): for code that only sees the Gymnasium arrays."""
    numbers = {
        name: float(value) if valid else None
        for name, value, valid in zip(
            NUMERIC_NAMES, observed["numeric"], observed["valid"], strict=True
        )
    }
    lane = LANES[int(np.argmax(observed["lane"]))]
    return {
        name: lane if name == "lane" else numbers[name]
        for name in ("ego_speed", "lane_offset", "heading", "lane", *NUMERIC_NAMES[3:])
    }


def require_action(action: Any) -> tuple[float, float]:
    """The normalised action as two floats clipped to [-1, 1].

    Raises:
        StateError: not two numbers, or one of them is not finite.
    """
    try:
        steering, acceleration = (float(value) for value in action)
    except (TypeError, ValueError):
        raise StateError(
            f"action {action!r}: expected 2 numbers in [-1, 1], (steering, acceleration)"
        ) from None
    if not (math.isfinite(steering) and math.isfinite(acceleration)):
        raise StateError(
            f"action ({steering}, {acceleration}) is not finite; the car takes (steering, "
            "acceleration) in [-1, 1], so put a Controller with its breakers before the environment"
        )
    return min(max(steering, -1.0), 1.0), min(max(acceleration, -1.0), 1.0)
