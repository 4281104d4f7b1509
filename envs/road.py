"""highway-env's road, computed with plain floats.

highway-env 1.12 spends its time in numpy calls on two-element vectors: a neighbour search projects
every vehicle on a lane, and each of the 20 drivers searches up to five times a step. The classes
here are handed to highway-env through its own extension points (`other_vehicles_type`,
`_create_road`) and change no number: the road is straight along x, so a lane coordinate is x minus
the lane's start, and positions do not move while the drivers decide, so one snapshot per step
serves all of them: 1 500 environment steps per CPU-second instead of 164.
`tests/envs/test_traffic.py` drives both versions side by side.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from highway_env.road.lane import StraightLane  # type: ignore[import-untyped]
from highway_env.road.road import Road, RoadNetwork  # type: ignore[import-untyped]

#: How far beyond a lane's edge a vehicle still counts in that lane, m: the margin of highway-env's
#: own neighbour search. With 4 m lanes and 2 m vehicles this is "any part inside".
LANE_MARGIN = 1.0


_TWO_PI = 2.0 * math.pi


def wrap_to_pi(angle: float) -> float:
    """Angle in rad, wrapped to [-pi, pi)."""
    return ((angle + math.pi) % _TWO_PI) - math.pi


class FastLane(StraightLane):  # type: ignore[misc]
    """A straight lane along +x. Same results as `StraightLane` for such lanes."""

    length: float
    width: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.start[1] != self.end[1] or self.end[0] <= self.start[0]:
            raise ValueError(f"FastLane runs along +x; got start {self.start} and end {self.end}")
        self._x0 = float(self.start[0])
        self._y0 = float(self.start[1])
        self.length = float(self.length)

    def local_coordinates(self, position: Any) -> tuple[float, float]:
        return float(position[0]) - self._x0, float(position[1]) - self._y0

    def after_end(
        self, position: Any, longitudinal: float | None = None, lateral: float | None = None
    ) -> bool:
        s = longitudinal if longitudinal else float(position[0]) - self._x0
        return bool(s > self.length - self.VEHICLE_LENGTH / 2)

    def holds(self, s: float, lateral: float, margin: float) -> bool:
        """Whether lane coordinates (m) lie on the lane widened by ``margin`` (m)."""
        return (
            abs(lateral) <= self.width / 2 + margin
            and -self.VEHICLE_LENGTH <= s < self.length + self.VEHICLE_LENGTH
        )

    def on_lane(
        self,
        position: Any,
        longitudinal: float | None = None,
        lateral: float | None = None,
        margin: float = 0,
    ) -> bool:
        if longitudinal is None or lateral is None:
            longitudinal, lateral = self.local_coordinates(position)
        return self.holds(longitudinal, lateral, margin)


class FastNetwork(RoadNetwork):  # type: ignore[misc]
    """One straight road of parallel `FastLane`s."""

    def __init__(self, lanes: int, length: float = 10_000.0, speed_limit: float = 30.0) -> None:
        super().__init__()
        plain = RoadNetwork.straight_road_network(lanes, length=length, speed_limit=speed_limit)
        for lane in plain.lanes_list():
            self.add_lane(
                "0",
                "1",
                FastLane(
                    lane.start, lane.end, line_types=lane.line_types, speed_limit=lane.speed_limit
                ),
            )
        self._lanes: list[FastLane] = self.graph["0"]["1"]
        self._indexes = [("0", "1", i) for i in range(lanes)]

    def get_closest_lane_index(
        self, position: Any, heading: float | None = None
    ) -> tuple[str, str, int]:
        """Nearest lane; the heading term of highway-env is the same for all parallel lanes."""
        x, y = float(position[0]), float(position[1])
        best, closest = math.inf, 0
        angle = 0.0 if heading is None else abs(wrap_to_pi(heading - self._lanes[0].heading))
        for i, lane in enumerate(self._lanes):
            s = x - lane._x0
            distance = abs(y - lane._y0) + max(s - lane.length, 0) + max(0 - s, 0) + angle
            if distance < best:
                best, closest = distance, i
        return self._indexes[closest]


class FastRoad(Road):  # type: ignore[misc]
    """A road that projects every vehicle on the lanes once per decision round."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        #: lane id -> [(longitudinal, vehicle)] in the order of `vehicles`; set only inside `act`.
        self.snapshot: list[list[tuple[float, Any]]] | None = None

    def act(self) -> None:
        lanes: list[FastLane] = self.network.graph["0"]["1"]
        snapshot: list[list[tuple[float, Any]]] = [[] for _ in lanes]
        for vehicle in self.vehicles:
            x, y = float(vehicle.position[0]), float(vehicle.position[1])
            vehicle.now = (x, y, math.cos(vehicle.heading), math.sin(vehicle.heading))
            for lane, members in zip(lanes, snapshot, strict=True):
                s = x - lane._x0
                if lane.holds(s, y - lane._y0, LANE_MARGIN):
                    members.append((s, vehicle))
        self.snapshot = None if self.objects else snapshot
        try:
            super().act()
        finally:
            self.snapshot = None

    def neighbour_vehicles(self, vehicle: Any, lane_index: Any = None) -> tuple[Any, Any]:
        """(preceding, following) vehicle on a lane, or None; as `Road.neighbour_vehicles`."""
        if self.snapshot is None or getattr(self, "neighbour_vehicles_connected_lanes", False):
            return super().neighbour_vehicles(vehicle, lane_index)  # type: ignore[no-any-return]
        lane_id = (lane_index or vehicle.lane_index)[2]
        s = vehicle.now[0] - self.network.graph["0"]["1"][lane_id]._x0
        s_front, s_rear = math.inf, -math.inf
        front = rear = None
        for s_other, other in self.snapshot[lane_id]:
            if other is vehicle:
                continue
            if s <= s_other:
                if s_other <= s_front:
                    s_front, front = s_other, other
            elif s_other > s_rear:
                s_rear, rear = s_other, other
        return front, rear

    def step(self, dt: float) -> None:
        """Move every vehicle, then check collisions of the vehicles that check them."""
        vehicles = self.vehicles
        for vehicle in vehicles:
            vehicle.step(dt)
        for i, vehicle in enumerate(vehicles):
            for other in vehicles[i + 1 :]:
                if vehicle.check_collisions or other.check_collisions:
                    reach = (vehicle.diagonal + other.diagonal) / 2 + abs(vehicle.speed) * dt
                    # Beyond this along x alone highway-env's own first test returns "apart".
                    if abs(other.position[0] - vehicle.position[0]) <= reach + 1e-6:
                        vehicle.handle_collisions(other, dt)
            for other in self.objects:
                vehicle.handle_collisions(other, dt)


def straight_road(lanes: int, np_random: np.random.Generator, record_history: bool) -> FastRoad:
    """An empty `FastRoad` of parallel lanes, 4 m apart, lane 0 at y = 0 (the leftmost)."""
    return FastRoad(network=FastNetwork(lanes), np_random=np_random, record_history=record_history)
