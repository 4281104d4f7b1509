"""The lane ahead in CARLA, and who is in it; not run against a server."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.envs import carla_doubles as double
from tests.envs.carla_doubles import RADIUS, START, STRAIGHT, WIDTH, Transform, Vector3D, pose
from wmrt.envs.carla_road import RANGE, Body, body, curvature, lane_ahead, lead

INNER = RADIUS - WIDTH / 2  # m, the lane's own radius in the bend


def car(
    s: float, right: float = 0.0, speed: float = 20.0, width: float = 1.0, z: float = 0.0
) -> Body:
    place = pose(s, right)
    yaw = math.radians(place.rotation.yaw)
    velocity = Vector3D(speed * math.cos(yaw), speed * math.sin(yaw))
    return Body(place.location.x, place.location.y, z, 2.4, width, velocity)


def path(s: float) -> Any:
    return lane_ahead(double.Waypoint(s))


def seen(ego: Body, s: float, *others: Body) -> tuple[float | None, float | None]:
    return lead(path(s), WIDTH, ego, others)


def test_a_body_is_where_its_box_is() -> None:
    """The box of the double lies 0.1 m ahead of the vehicle's origin; sizes are halves."""
    snapshot = double.ActorSnapshot(
        7, Transform(double.Location(1.0, 2.0), double.Rotation(yaw=90.0)), Vector3D()
    )
    found = body(snapshot, double.BoundingBox())
    assert (found.x, found.y) == pytest.approx((1.0, 2.1))
    assert (found.length, found.width) == (2.4, 1.0)


def test_the_lane_ahead_reaches_100_m_by_its_own_measure() -> None:
    straight = path(0.0)
    assert [point.s for point in straight[:3]] == [0.0, 5.0, 10.0] and straight[-1].s == 100.0
    bend = path(STRAIGHT)
    assert bend[-1].s >= RANGE > bend[-2].s
    # CARLA counts its steps at the road's edge; the lane is inside of it.
    steps = len(bend) - 1
    assert bend[-1].s == pytest.approx(5.0 * steps * INNER / RADIUS, rel=2e-4)


def test_curvature_is_positive_to_the_right() -> None:
    assert curvature(path(50.0)) == 0.0
    assert curvature(path(STRAIGHT)) == pytest.approx(1 / INNER, rel=1e-3)
    mirrored = [point._replace(yaw=-point.yaw) for point in path(STRAIGHT)]
    assert curvature(mirrored) == pytest.approx(-1 / INNER, rel=1e-3)
    assert curvature(path(double.END - 8.0)) is None


def test_distance_from_bumper_to_bumper(seed: int) -> None:
    for at, ahead in np.random.default_rng(seed).uniform((0.0, 10.0), (60.0, 35.0), (50, 2)):
        gap, dv = seen(car(at), at, car(at + ahead, speed=15.0))
        assert gap == pytest.approx(ahead - 4.8) and dv == pytest.approx(-5.0)


def test_distance_around_a_bend(seed: int) -> None:
    """Along the lane, not through the air, which is 4.7 m shorter over 100 m."""
    for at, ahead in np.random.default_rng(seed).uniform((0.0, 20.0), (50.0, 80.0), (50, 2)):
        begin = STRAIGHT + at
        gap, dv = seen(car(begin), begin, car(begin + ahead, speed=15.0))
        assert gap == pytest.approx(ahead * INNER / RADIUS - 4.8, abs=0.05)
        assert dv == pytest.approx(-5.0, abs=0.05)


def test_the_nearest_ahead_counts() -> None:
    ego, near, far = car(20.0), car(50.0, speed=25.0), car(70.0, speed=1.0)
    assert seen(ego, 20.0, far, near) == (pytest.approx(25.2), pytest.approx(5.0))
    assert seen(ego, 20.0, car(10.0)) == (RANGE, 0.0)  # behind
    assert seen(ego, 20.0) == (RANGE, 0.0)
    assert seen(ego, 20.0, car(23.0)) == (0.0, pytest.approx(0.0))  # they overlap
    assert seen(ego, 20.0, car(60.0, z=6.0)) == (RANGE, 0.0)  # on a bridge


@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_any_part_in_the_lane_is_in_the_lane(side: float) -> None:
    edge = WIDTH / 2 + 1.0
    for s, at in ((20.0, 50.0), (STRAIGHT + 5.0, STRAIGHT + 42.5)):
        assert seen(car(s), s, car(at, side * (edge - 0.05)))[0] != RANGE
        assert seen(car(s), s, car(at, side * (edge + 0.15)))[0] == RANGE


def test_nobody_hides_between_two_pieces_of_a_bend(seed: int) -> None:
    """Outside of a bend the strips beside two pieces leave a wedge."""
    rng = np.random.default_rng(seed)
    for _ in range(200):
        s = STRAIGHT + rng.uniform(0.0, 40.0)
        other = car(s + rng.uniform(10.0, 40.0), rng.uniform(-2.5, 2.5))
        gap, _ = seen(car(s), s, other)
        assert gap is not None and gap < 40.0


def test_beyond_the_lanes_end_nothing_is_known() -> None:
    s = double.END - 30.0
    assert seen(car(s), s) == (None, None)
    assert seen(car(s), s, car(s + 20.0, speed=20.0))[0] == pytest.approx(14.85, abs=0.05)
    assert lead(path(double.END - 1.0), WIDTH, car(double.END - 1.0), []) == (None, None)


def test_the_straightest_way_through_a_junction() -> None:
    class Fork(double.Waypoint):
        def next(self, distance: float) -> Any:
            left, right = double.Waypoint(self._s + distance), double.Waypoint(self._s + distance)
            left.transform = double.Transform(left.transform.location, double.Rotation(yaw=-40.0))
            right.transform = double.Transform(right.transform.location, double.Rotation(yaw=359.0))
            return [left, right]

    assert lane_ahead(Fork(0.0))[1].yaw == pytest.approx(math.radians(359.0))
    assert START + 5.0 == lane_ahead(Fork(0.0))[1].x
