"""What a CARLA vehicle perceives, and what its pedals and wheel are told: units and signs.

Not run against a CARLA server: tested with doubles, and with the types and the map of the client,
carla 0.9.16, which need none.

CARLA's world is left-handed: x forward, y to the right, z up, in metres (Unreal's own centimetres
survive only in the wheels' ``position`` and ``radius``, which nothing here reads). Yaw grows to the
right, seen from above: at yaw 90 a car looks along +y. Angles are degrees, angular velocities
degrees per second, speed limits km/h, a steer of +1 is full right. Here, as in `wmrt/Highway-v0`,
positive is to the right too, so that no sign changes; angles become rad, km/h become m/s. ROS
(REP 103) has y and yaw to the left: negate offset, heading, yaw rate and steering for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from wmrt.core.errors import StateError, UsageError
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.schema import StateSchema, category, flag, numeric

RANGE = 100.0  # m, how far ahead another vehicle or an obstacle is told
SILENCE = 0.5  # s
LIGHTS = ("none", "red", "yellow", "green", "off")
#: Of the brake, in the action at rest: a car whose model may not drive is to stop, not to coast.
REST_BRAKE = 0.3

#: (steering of the front wheels, pedal). Pedal -1 is full brake, +1 full throttle. The full brake
#: is there after 0.25 s, the full throttle after 0.5 s.
ACTIONS = ActionSpec(
    (
        ActionDim("steering", "rad", -0.6, 0.6, rate_up=1.0, rate_down=1.0),
        ActionDim("pedal", "1", -1.0, 1.0, rate_up=2.0, rate_down=4.0),
    )
)


@functools.cache
def carla_schema() -> StateSchema:
    """17 fields. Without a lane, or without its own speed, the car is not driven.

    What a sensor may give instead of the simulator is unknown half a second after it fell silent.
    """
    fields = {
        "speed": numeric("m/s", -20.0, 60.0, decimals=2, required=True),
        "lateral_speed": numeric("m/s", -20.0, 20.0, decimals=2),
        "acceleration": numeric("m/s^2", -20.0, 20.0, decimals=2, max_age=SILENCE),
        "lateral_acceleration": numeric("m/s^2", -20.0, 20.0, decimals=2, max_age=SILENCE),
        "yaw_rate": numeric("rad/s", -3.0, 3.0, decimals=3, max_age=SILENCE),
        "heading": numeric("rad", -3.15, 3.15, decimals=3, required=True),
        "lane_offset": numeric("m", -10.0, 10.0, decimals=3, required=True),
        "lane_width": numeric("m", 0.0, 10.0, decimals=2),
        "curvature": numeric("1/m", -0.2, 0.2, decimals=4),
        "junction": flag(),
        "steering": numeric("rad", -0.6, 0.6, decimals=3),
        "pedal": numeric("1", -1.0, 1.0, decimals=3),
        "traffic_light": category(LIGHTS),
        "speed_limit": numeric("m/s", 0.0, 60.0, decimals=2),
        "lead_gap": numeric("m", 0.0, RANGE, decimals=2),
        "lead_dv": numeric("m/s", -60.0, 60.0, decimals=2),
        "obstacle_gap": numeric("m", 0.0, RANGE, decimals=2, max_age=SILENCE),
    }
    return StateSchema(fields, neutral=(0.0, -REST_BRAKE), max_unknown=8, name="carla")


class Motion(NamedTuple):
    """Of a vehicle in its own frame; lateral and yaw are positive to the right."""

    speed: float  # m/s
    lateral_speed: float
    acceleration: float  # m/s^2
    lateral_acceleration: float
    yaw_rate: float  # rad/s


def forward(rotation: Any) -> tuple[float, float, float]:
    """Unit vector along a ``carla.Rotation``."""
    pitch, yaw = math.radians(rotation.pitch), math.radians(rotation.yaw)
    return math.cos(pitch) * math.cos(yaw), math.cos(pitch) * math.sin(yaw), math.sin(pitch)


def rightward(rotation: Any) -> tuple[float, float, float]:
    """Unit vector to the right of a ``carla.Rotation``."""
    pitch, yaw = math.radians(rotation.pitch), math.radians(rotation.yaw)
    roll = math.radians(rotation.roll)
    tilt, level = math.sin(pitch) * math.sin(roll), math.cos(roll)
    return (
        math.cos(yaw) * tilt - math.sin(yaw) * level,
        math.sin(yaw) * tilt + math.cos(yaw) * level,
        -math.cos(pitch) * math.sin(roll),
    )


def along(vector: Any, direction: Sequence[float]) -> float:
    """Component of a ``carla.Vector3D`` along a unit vector."""
    x, y, z = direction
    return float(vector.x * x + vector.y * y + vector.z * z)


def wrap(angle: float) -> float:
    """The same angle in [-pi, pi], rad."""
    return math.remainder(angle, 2.0 * math.pi)


def motion(actor: Any) -> Motion:
    """From a ``carla.ActorSnapshot`` or an actor: all of one frame."""
    rotation = actor.get_transform().rotation
    ahead, right = forward(rotation), rightward(rotation)
    velocity, acceleration = actor.get_velocity(), actor.get_acceleration()
    return Motion(
        along(velocity, ahead),
        along(velocity, right),
        along(acceleration, ahead),
        along(acceleration, right),
        math.radians(actor.get_angular_velocity().z),
    )


def lane_pose(transform: Any, lane: Any) -> tuple[float, float]:
    """(heading, offset) in a lane: rad from its direction, m from its centre, right positive.

    Args:
        transform: ``carla.Transform`` of the vehicle.
        lane: that of the waypoint, which lies in the lane's centre.
    """
    heading = wrap(math.radians(transform.rotation.yaw - lane.rotation.yaw))
    yaw = math.radians(lane.rotation.yaw)
    dx = transform.location.x - lane.location.x
    dy = transform.location.y - lane.location.y
    return heading, dy * math.cos(yaw) - dx * math.sin(yaw)


def light(vehicle: Any) -> str | None:
    """One of `LIGHTS`; None where CARLA does not know.

    CARLA says green to a vehicle that no light concerns; that is ``none`` here.
    """
    if not vehicle.is_at_traffic_light():
        return "none"
    name = str(vehicle.get_traffic_light_state().name).lower()
    return name if name in LIGHTS else None


class Wheels(NamedTuple):
    """How far the front wheels turn.

    Attributes:
        lock: rad at a steer of 1, standing still.
        curve: (km/h, share of the lock that is left) points, in order.
    """

    lock: float
    curve: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, physics: Any) -> Wheels:
        """From a ``carla.VehiclePhysicsControl``. Raises `UsageError` if it cannot be steered."""
        degrees = max((float(wheel.max_steer_angle) for wheel in physics.wheels), default=0.0)
        points = sorted((float(point.x), float(point.y)) for point in physics.steering_curve)
        if not degrees > 0.0 or not all(share > 0.0 for _, share in points):
            raise UsageError(
                f"wheels that turn {degrees} degrees, by the steering curve {points}, cannot be "
                "steered at every speed; set a physics control with max_steer_angle and shares "
                "above 0"
            )
        return cls(math.radians(degrees), tuple(points))

    def at(self, speed: float) -> float:
        """rad at a steer of 1, at ``speed`` m/s."""
        kmh, before = 3.6 * abs(speed), None
        for at, share in self.curve:
            if kmh <= at:
                if before is not None:
                    share -= (share - before[1]) * (at - kmh) / (at - before[0])
                return self.lock * share
            before = at, share
        return self.lock * (1.0 if before is None else before[1])


def to_control(action: Any, lock: float, make: Callable[..., Any]) -> Any:
    """An action as a ``carla.VehicleControl``.

    Args:
        action: normalised (steering, pedal); clipped to [-1, 1].
        lock: rad at a steer of 1, now (`Wheels.at`). An angle beyond it is full steer.
        make: ``carla.VehicleControl``.

    Raises:
        StateError: no two finite numbers. CARLA itself takes NaN.
    """
    try:
        values = [float(value) for value in action]
        ok = len(values) == len(ACTIONS) and all(math.isfinite(value) for value in values)
    except (TypeError, ValueError):
        ok = False
    if not ok:
        raise StateError(
            f"action {action!r}: expected two finite numbers in [-1, 1], (steering, pedal); put a "
            "Controller with its breakers before the car"
        )
    given = ACTIONS.to_physical([min(max(value, -1.0), 1.0) for value in values])
    return make(
        throttle=max(given["pedal"], 0.0),
        steer=min(max(given["steering"] / lock, -1.0), 1.0),
        brake=max(-given["pedal"], 0.0),
        hand_brake=False,
        reverse=False,
        manual_gear_shift=False,
    )


def from_control(control: Any, lock: float) -> tuple[float, float]:
    """(steering rad, pedal) of a ``carla.VehicleControl``, in `ACTIONS`' ranges; brake over
    throttle."""
    steering = ACTIONS.dims[0]
    angle = min(max(float(control.steer) * lock, steering.low), steering.high)
    brake = float(control.brake)
    return angle, -brake if brake > 0.0 else float(control.throttle)
