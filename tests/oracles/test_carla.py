"""The CARLA adapter against the installed client's own types and map: `make test-oracles`.

Not run against a server: there is none here. What needs no server is real below: vectors,
transforms, controls, settings, light states, and a map read from OpenDRIVE text. Actors, sensors,
snapshots and the world cannot be made without one; of those the attributes are compared.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.envs import carla_doubles as double
from tests.oracles.live import oracle
from wmrt.envs.carla import CarlaCar
from wmrt.envs.carla_road import curvature, lane_ahead
from wmrt.envs.carla_state import (
    ACTIONS,
    LIGHTS,
    Wheels,
    forward,
    from_control,
    lane_pose,
    rightward,
    to_control,
)

carla, NAME = oracle("carla", "carla")


@pytest.mark.parametrize("kind", double.DOUBLES, ids=lambda kind: kind.__name__)
def test_a_double_has_no_attribute_that_the_real_type_lacks(kind: type) -> None:
    own = {name for name in vars(kind) if not name.startswith("_")}
    own |= set(getattr(kind, "__dataclass_fields__", ()))
    if kind.__name__ == "WorldSnapshot":
        own |= {"frame", "timestamp"}
    if kind.__name__ in ("Vehicle", "Sensor"):
        own |= {"id", "type_id"}
    if kind.__name__ == "Waypoint":
        own |= {"transform", "lane_width", "is_junction"}
    assert own, kind
    assert own <= set(dir(getattr(carla, kind.__name__))), NAME


@pytest.mark.parametrize(
    "kind",
    [double.VehicleControl, double.WorldSettings, double.Timestamp],
    ids=lambda k: k.__name__,
)
def test_a_double_begins_as_the_real_one(kind: Any) -> None:
    real, own = getattr(carla, kind.__name__)(), kind()
    for name in kind.__dataclass_fields__:
        assert getattr(real, name) == pytest.approx(getattr(own, name)), name


def test_methods_are_called_as_they_are_declared() -> None:
    """Boost.Python writes the signatures into the docstrings."""
    assert "float" in carla.World.tick.__doc__ and "-> int" in carla.World.tick.__doc__
    assert "(WorldSettings)" in carla.World.apply_settings.__doc__
    assert "(VehicleControl)control" in carla.Vehicle.apply_control.__doc__
    assert (
        "(int)" in carla.WorldSnapshot.find.__doc__ or "ActorId" in carla.WorldSnapshot.find.__doc__
    )
    assert "(str)" in carla.ActorList.filter.__doc__


def test_axes(seed: int) -> None:
    """Left-handed: at yaw 90 a car looks along +y and has -x to its right."""
    rng = np.random.default_rng(seed)
    for pitch, yaw, roll in [(0.0, 90.0, 0.0), *rng.uniform(-180.0, 180.0, (200, 3)).tolist()]:
        rotation = carla.Rotation(pitch=pitch, yaw=yaw, roll=roll)
        for own, real in (
            (forward(rotation), rotation.get_forward_vector()),
            (rightward(rotation), rotation.get_right_vector()),
        ):
            # float32 sines of angles up to 180 degrees
            np.testing.assert_allclose(own, (real.x, real.y, real.z), rtol=0.0, atol=1e-6)


def test_light_states() -> None:
    names = {state.name for state in carla.TrafficLightState.values.values()}
    assert names == {state.name for state in double.TrafficLightState}
    assert {name.lower() for name in names} - {"unknown"} == set(LIGHTS) - {"none"}


def test_controls(seed: int) -> None:
    lock = math.radians(70.0)
    for action in np.random.default_rng(seed).uniform(-1.0, 1.0, (100, 2)).tolist():
        real = to_control(action, lock, carla.VehicleControl)
        own = to_control(action, lock, double.VehicleControl)
        assert type(real) is carla.VehicleControl
        for name in double.VehicleControl.__dataclass_fields__:
            assert getattr(real, name) == pytest.approx(getattr(own, name), abs=1e-7), name
        given = from_control(real, lock)
        pairs = zip(ACTIONS.dims, given, strict=True)
        back = [dim.to_normalised(value) for dim, value in pairs]
        assert back == pytest.approx(action, abs=1e-6)
    assert math.isnan(carla.VehicleControl(steer=math.nan).steer)  # why `to_control` refuses it


def test_wheels() -> None:
    physics = carla.VehiclePhysicsControl()
    physics.wheels = [carla.WheelPhysicsControl(max_steer_angle=angle) for angle in (60.0, 0.0)]
    physics.steering_curve = [carla.Vector2D(0.0, 1.0), carla.Vector2D(20.0, 0.5)]
    wheels = Wheels.of(physics)
    assert wheels.lock == pytest.approx(math.radians(60.0))
    assert wheels.at(10.0 / 3.6) == pytest.approx(0.75 * wheels.lock)


ALONG = 0.15  # m


@pytest.fixture(scope="module")
def road() -> Any:
    return carla.Map("road", double.ROAD)


def test_the_double_of_the_map_is_this_map(road: Any, seed: int) -> None:
    """So that what is tested with the double is tested with the client's own waypoints.

    The client looks for the nearest of short pieces: in the bend it is centimetres off along the
    lane, 10 at most in 3 000 places, and by as much of its angle; across it 0.06 mm at most.
    """
    rng = np.random.default_rng(seed)
    for s, right in rng.uniform((0.5, -1.5), (double.END - 0.5, 1.5), (300, 2)):
        place = double.pose(s, right).location
        real = road.get_waypoint(carla.Location(place.x, place.y, 0.0))
        own = double.Map().get_waypoint(place)
        assert own is not None and real.lane_width == own.lane_width == double.WIDTH
        assert real.is_junction is own.is_junction is False
        for name in ("x", "y", "z"):
            there, here = (getattr(w.transform.location, name) for w in (real, own))
            assert there == pytest.approx(here, abs=ALONG), (s, right, name)
        turn = real.transform.rotation.yaw - own.transform.rotation.yaw
        assert math.remainder(turn, 360.0) == pytest.approx(0.0, abs=math.degrees(ALONG / 98.25))
        assert len(real.next(5.0)) == len(own.next(5.0)) or double.END - 5.5 < s < double.END - 4.5


def test_lanes_of_the_real_map(road: Any, seed: int) -> None:
    for s, right in np.random.default_rng(seed).uniform((1.0, -1.5), (150.0, 1.5), (100, 2)):
        place = double.pose(s, right)
        where = carla.Transform(
            carla.Location(place.location.x, place.location.y, 0.0),
            carla.Rotation(yaw=place.rotation.yaw + 3.0),
        )
        waypoint = road.get_waypoint(where.location)
        heading, offset = lane_pose(where, waypoint.transform)
        assert heading == pytest.approx(math.radians(3.0), abs=ALONG / 98.25)  # to the right
        assert offset == pytest.approx(right, abs=1e-3)
        path, own = lane_ahead(waypoint), lane_ahead(double.Waypoint(s))
        assert len(path) == len(own)
        np.testing.assert_allclose(path, own, rtol=0.0, atol=ALONG)
        assert curvature(path) == pytest.approx(curvature(own), abs=1e-4)


def test_the_adapter_takes_the_client_by_itself() -> None:
    """And applies the client's own control to a vehicle."""
    ego = double.Vehicle(1, double.pose(5.0), 10.0)
    kept: list[Any] = []
    ego.apply_control = kept.append  # type: ignore[method-assign,assignment]
    with CarlaCar(double.World(ego), ego) as car:
        car.tick()
        car.apply([0.1, 0.2])
    assert [type(control) for control in kept] == [carla.VehicleControl] * 2
    assert kept[0].throttle == pytest.approx(0.2) and kept[1].brake == 1.0
