"""The lane ahead of a CARLA vehicle, and who drives in it.

Not run against a CARLA server; see `carla_state`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from wmrt.envs.carla_state import RANGE, along, forward, wrap

STEP = 5.0  # m between points of a lane; 0.16 m from an arc of 20 m radius
DECK = 3.0  # m above or below: another road


class Point(NamedTuple):
    """A point of a lane's centre: m, rad, and m along the lane from where the car is."""

    x: float
    y: float
    z: float
    yaw: float
    s: float


class Body(NamedTuple):
    """A vehicle: centre (m), half its size, and speed along its own forward axis (m/s)."""

    x: float
    y: float
    z: float
    length: float
    width: float
    velocity: Any


def body(snapshot: Any, box: Any) -> Body:
    """From a ``carla.ActorSnapshot`` and the actor's ``carla.BoundingBox`` (half sizes, m)."""
    transform = snapshot.get_transform()
    ahead = forward(transform.rotation)
    centre = transform.location
    return Body(
        float(centre.x + box.location.x * ahead[0]),
        float(centre.y + box.location.x * ahead[1]),
        float(centre.z),
        float(box.extent.x),
        float(box.extent.y),
        snapshot.get_velocity(),
    )


def lane_ahead(waypoint: Any, reach: float = RANGE) -> list[Point]:
    """The lane's centre from a ``carla.Waypoint`` on, straightest way through a junction."""
    points, s = [_point(waypoint, 0.0)], 0.0
    while s < reach:
        following = waypoint.next(STEP)
        if not following:
            break
        yaw = points[-1].yaw
        waypoint = min(following, key=lambda each: abs(wrap(_yaw(each) - yaw)))
        # Measured here: CARLA's steps count along the road's middle, not this lane's.
        s += math.dist(points[-1][:3], _point(waypoint, s)[:3])
        points.append(_point(waypoint, s))
    return points


def curvature(path: list[Point]) -> float | None:
    """1/m over the next two steps, positive to the right; None where the lane ends before."""
    if len(path) < 3 or path[2].s == 0.0:
        return None
    return wrap(path[2].yaw - path[0].yaw) / path[2].s


def lead(
    path: list[Point], lane_width: float, ego: Body, others: Iterable[Body]
) -> tuple[float | None, float | None]:
    """(gap m from bumper to bumper, speed difference m/s) of the nearest vehicle ahead.

    A vehicle is in the lane if any part of it is. Nobody within `RANGE`: gap `RANGE`, difference 0;
    nobody, and the lane is shorter: unknown.
    """
    start = _project(path, ego)
    own = 0.0 if start is None else start[0]
    best: tuple[float | None, float | None] = (None, None)
    if path[-1].s >= RANGE:
        best = RANGE, 0.0
    for other in others:
        found = _project(path, other)
        if found is None or found[1] > lane_width / 2.0 + other.width:
            continue
        gap = max(found[0] - own - ego.length - other.length, 0.0)
        if found[0] > own and (best[0] is None or gap < best[0]):
            best = gap, _speed(other, found[2]) - _speed(ego, path[0].yaw)
    return best


def _speed(vehicle: Body, yaw: float) -> float:
    return along(vehicle.velocity, (math.cos(yaw), math.sin(yaw), 0.0))


def _project(path: list[Point], vehicle: Body) -> tuple[float, float, float] | None:
    """(m along the path, m beside it, yaw there) of the nearest point; None off its ends."""
    best: tuple[float, float, float] | None = None
    last = len(path) - 2
    for n, (a, b) in enumerate(itertools.pairwise(path)):
        dx, dy, x, y = b.x - a.x, b.y - a.y, vehicle.x - a.x, vehicle.y - a.y
        length = math.hypot(dx, dy)
        if length == 0.0 or abs(vehicle.z - a.z) > DECK:
            continue
        part = (x * dx + y * dy) / length**2
        if (n == 0 and part < 0.0) or (n == last and part > 1.0):
            continue
        # Between two pieces, outside of a bend, the corner is the nearest point.
        part = min(max(part, 0.0), 1.0)
        off = math.hypot(x - part * dx, y - part * dy)
        if best is None or off < best[1]:
            best = a.s + part * (b.s - a.s), off, a.yaw
    return best


def _yaw(waypoint: Any) -> float:
    return math.radians(waypoint.transform.rotation.yaw)


def _point(waypoint: Any, s: float) -> Point:
    location = waypoint.transform.location
    return Point(float(location.x), float(location.y), float(location.z), _yaw(waypoint), s)
