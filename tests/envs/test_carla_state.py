"""CARLA's units and signs, with numbers; not run against a server."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.envs import carla_doubles as double
from tests.envs.carla_doubles import Location, Rotation, Transform, Vector3D
from wmrt.control.defaults import default_limits
from wmrt.core.errors import StateError, UsageError
from wmrt.envs.carla_state import (
    ACTIONS,
    LIGHTS,
    Wheels,
    along,
    carla_schema,
    forward,
    from_control,
    lane_pose,
    light,
    motion,
    rightward,
    to_control,
    wrap,
)


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=0.0, atol=1e-12)


def test_a_car_at_yaw_90_looks_along_plus_y_and_has_minus_x_to_its_right() -> None:
    rotation = Rotation(yaw=90.0)
    close(forward(rotation), (0.0, 1.0, 0.0))
    close(rightward(rotation), (-1.0, 0.0, 0.0))
    close(forward(Rotation(pitch=30.0)), (math.sqrt(0.75), 0.0, 0.5))  # nose up
    close(rightward(Rotation(roll=90.0))[2], -1.0)  # right side down


def test_axes_are_unit_vectors_at_right_angles(seed: int) -> None:
    for pitch, yaw, roll in np.random.default_rng(seed).uniform(-180.0, 180.0, (100, 3)):
        rotation = Rotation(pitch, yaw, roll)
        ahead, right = forward(rotation), rightward(rotation)
        close(np.linalg.norm(ahead), 1.0)
        close(np.linalg.norm(right), 1.0)
        close(np.dot(ahead, right), 0.0)


def test_motion_in_the_cars_own_frame() -> None:
    """It looks along +y at yaw 90, so that world -x is its right."""
    actor = double.ActorSnapshot(1, Transform(Location(), Rotation(yaw=90.0)), Vector3D(-1.0, 20.0))
    actor._acceleration = Vector3D(-0.5, -3.0)
    actor._angular = Vector3D(z=90.0)
    moves = motion(actor)
    close(moves, (20.0, 1.0, -3.0, 0.5, math.pi / 2))
    assert moves._fields == tuple(carla_schema().fields)[:5]


@pytest.mark.parametrize(
    ("yaw", "lane", "heading"),
    [(10.0, 0.0, 10.0), (-179.0, 179.0, 2.0), (350.0, -10.0, 0.0), (180.0, 0.0, 180.0)],
)
def test_heading_is_relative_to_the_lane_and_grows_to_the_right(
    yaw: float, lane: float, heading: float
) -> None:
    found, _ = lane_pose(
        Transform(Location(), Rotation(yaw=yaw)), Transform(rotation=Rotation(yaw=lane))
    )
    close(abs(found) if abs(heading) == 180.0 else found, math.radians(heading))


def test_offset_grows_to_the_right() -> None:
    lane = Transform(Location(10.0, 5.0), Rotation())
    close(lane_pose(Transform(Location(12.0, 5.75), Rotation()), lane), (0.0, 0.75))
    lane = Transform(Location(10.0, 5.0), Rotation(yaw=90.0))  # along +y: its right is -x
    close(lane_pose(Transform(Location(9.25, 8.0), Rotation(yaw=90.0)), lane), (0.0, 0.75))
    lane = Transform(Location(10.0, 5.0), Rotation(yaw=180.0))
    close(lane_pose(Transform(Location(0.0, 5.75), Rotation(yaw=180.0)), lane)[1], -0.75)


def test_traffic_lights() -> None:
    vehicle = double.Vehicle(1, Transform())
    assert light(vehicle) == "none"  # although CARLA says green
    said = []
    for state in double.TrafficLightState:
        vehicle._light = state
        said.append(light(vehicle))
    assert said == ["red", "yellow", "green", "off", None]
    assert set(said) - {None} == set(LIGHTS) - {"none"}


def test_wheels_turn_less_at_speed() -> None:
    wheels = Wheels.of(double.VehiclePhysicsControl())
    kmh = 1 / 3.6
    for speed, share in ((0.0, 1.0), (10.0, 0.95), (20.0, 0.9), (40.0, 0.85), (90.0, 0.75)):
        close(wheels.at(speed * kmh), math.radians(70.0) * share)
    close(wheels.at(-40.0 * kmh), math.radians(70.0) * 0.85)
    close(wheels.at(500.0 * kmh), math.radians(70.0) * 0.7)
    plain = double.VehiclePhysicsControl(steering_curve=[])
    close(Wheels.of(plain).at(30.0), math.radians(70.0))
    late = double.VehiclePhysicsControl(steering_curve=[double.Vector2D(50.0, 0.5)])
    close(Wheels.of(late).at(0.0), math.radians(35.0))


@pytest.mark.parametrize(
    "physics",
    [
        double.VehiclePhysicsControl(wheels=[]),
        double.VehiclePhysicsControl(wheels=[double.WheelPhysicsControl(0.0)]),
        double.VehiclePhysicsControl(wheels=[double.WheelPhysicsControl(math.nan)]),
        double.VehiclePhysicsControl(steering_curve=[double.Vector2D(0.0, 0.0)]),
    ],
)
def test_what_cannot_be_steered_is_refused(physics: Any) -> None:
    with pytest.raises(UsageError, match="cannot be steered"):
        Wheels.of(physics)


LOCK = math.radians(70.0)


@pytest.mark.parametrize(
    ("action", "throttle", "brake", "steer"),
    [
        ((0.0, 0.0), 0.0, 0.0, 0.0),
        ((0.0, 0.25), 0.25, 0.0, 0.0),
        ((0.0, -1.0), 0.0, 1.0, 0.0),
        ((1.0, 1.0), 1.0, 0.0, 0.6 / LOCK),  # full right: 0.6 rad, 0.491 of 70 degrees
        ((-1.0, -0.5), 0.0, 0.5, -0.6 / LOCK),
        ((7.0, -7.0), 0.0, 1.0, 0.6 / LOCK),
    ],
)
def test_an_action_as_a_control(action: Any, throttle: float, brake: float, steer: float) -> None:
    control = to_control(np.float32(action), LOCK, double.VehicleControl)
    close((control.throttle, control.brake, control.steer), (throttle, brake, steer))
    assert not (control.hand_brake or control.reverse or control.manual_gear_shift)


def test_an_angle_beyond_the_lock_is_full_steer() -> None:
    assert to_control((1.0, 0.0), 0.5, double.VehicleControl).steer == 1.0
    assert to_control((-1.0, 0.0), 0.5, double.VehicleControl).steer == -1.0


@pytest.mark.parametrize(
    "action", [(math.nan, 0.0), (0.0, -math.inf), (0.0,), (0.0, 0.0, 0.0), None, "ab", 0.0]
)
def test_no_other_action_becomes_a_control(action: Any) -> None:
    with pytest.raises(StateError, match="expected two finite numbers"):
        to_control(action, LOCK, double.VehicleControl)


def test_a_control_as_an_action(seed: int) -> None:
    for action in np.random.default_rng(seed).uniform(-1.0, 1.0, (50, 2)):
        given = from_control(to_control(action, LOCK, double.VehicleControl), LOCK)
        pairs = zip(ACTIONS.dims, given, strict=True)
        close([dim.to_normalised(value) for dim, value in pairs], action)
    both = double.VehicleControl(throttle=0.7, brake=0.2, steer=1.0)
    assert from_control(both, LOCK) == (0.6, -0.2)


def test_the_schema_and_its_limits_fit_the_actions() -> None:
    schema = carla_schema()
    assert len(schema.fields) == 17
    limits = default_limits(schema, ACTIONS, 0.05)
    assert limits.rest == (0.0, pytest.approx(-0.3))  # at rest it brakes
    control = to_control(limits.rest, LOCK, double.VehicleControl)
    assert control.throttle == 0.0 and control.brake == pytest.approx(0.3)
    assert [name for name, field in schema.fields.items() if field.required] == [
        "speed",
        "heading",
        "lane_offset",
    ]


def test_angles_wrap() -> None:
    close(
        [wrap(angle) for angle in (3 * math.pi / 2, -3 * math.pi / 2, 0.1)],
        [-math.pi / 2, math.pi / 2, 0.1],
    )
    close(along(Vector3D(1.0, 2.0, 3.0), (0.0, 0.0, 1.0)), 3.0)
