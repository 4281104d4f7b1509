"""highway-env's road and traffic, computed with plain floats.

highway-env 1.12 spends its time in numpy calls on two-element vectors: a neighbour search projects
every vehicle on a lane, and each of the 20 drivers searches up to five times a step. The classes
here are handed to highway-env through its own extension points (`other_vehicles_type`,
`_create_road`) and change no number: the road is straight along x, so a lane coordinate is x minus
the lane's start, and positions do not move while the drivers decide, so one snapshot per step
serves all of them. `tests/envs/test_traffic.py` drives both versions side by side.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from highway_env.road.lane import StraightLane  # type: ignore[import-untyped]
from highway_env.road.road import Road, RoadNetwork  # type: ignore[import-untyped]
from highway_env.vehicle.behavior import IDMVehicle  # type: ignore[import-untyped]
from highway_env.vehicle.controller import ControlledVehicle  # type: ignore[import-untyped]
from highway_env.vehicle.kinematics import Vehicle  # type: ignore[import-untyped]

#: How far beyond a lane's edge a vehicle still counts in that lane, m: the margin of highway-env's
#: own neighbour search. With 4 m lanes and 2 m vehicles this is "any part inside".
LANE_MARGIN = 1.0

_TWO_PI = 2.0 * math.pi


def wrap_to_pi(angle: float) -> float:
    """Angle in rad, wrapped to [-pi, pi)."""
    return ((angle + math.pi) % _TWO_PI) - math.pi


def not_zero(value: float, eps: float = 1e-2) -> float:
    """The value, or +-eps when it is nearer to zero than that (highway-env's guard)."""
    if abs(value) > eps:
        return value
    return eps if value >= 0 else -eps


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


def _drive(vehicle: Any, dt: float) -> None:
    """The kinematic bicycle of `Vehicle.step` on floats; crash handling stays with highway-env."""
    vehicle.clip_actions()
    beta = math.atan(0.5 * math.tan(vehicle.action["steering"]))
    speed, heading = vehicle.speed, vehicle.heading
    position = vehicle.position
    position[0] += speed * math.cos(heading + beta) * dt
    position[1] += speed * math.sin(heading + beta) * dt
    vehicle.heading = heading + speed * math.sin(beta) / (vehicle.LENGTH / 2) * dt
    vehicle.speed = speed + vehicle.action["acceleration"] * dt
    vehicle.on_state_update()


class FastIDMVehicle(IDMVehicle):  # type: ignore[misc]
    """IDM + MOBIL traffic (`IDMVehicle`), same decisions from the road's snapshot."""

    target_lane_index: tuple[str, str, int]

    def act(self, action: Any = None) -> None:
        if self.road.snapshot is None or self.route:
            super().act(action)
            return
        if self.crashed:
            return
        self.follow_road()
        if self.enable_lane_change:
            self.change_lane_policy()
        steering = self.steering_control(self.target_lane_index)
        front, _ = self.road.neighbour_vehicles(self, self.lane_index)
        acceleration = self._idm(self, front)
        if self.lane_index != self.target_lane_index:
            front, _ = self.road.neighbour_vehicles(self, self.target_lane_index)
            acceleration = min(acceleration, self._idm(self, front))
        acceleration = min(max(acceleration, -self.ACC_MAX), self.ACC_MAX)
        Vehicle.act(self, {"steering": steering, "acceleration": acceleration})

    def step(self, dt: float) -> None:
        if self.crashed or self.impact is not None:
            super().step(dt)
            return
        self.timer += dt
        _drive(self, dt)

    def steering_control(self, target_lane_index: Any) -> float:
        """Cascade lateral position -> heading -> steering angle, rad (`ControlledVehicle`)."""
        lane = self.road.network.get_lane(target_lane_index)
        lateral = float(self.position[1]) - lane._y0
        speed = not_zero(self.speed)
        command = min(max(-self.KP_LATERAL * lateral / speed, -1.0), 1.0)
        quarter = math.pi / 4
        heading_ref = lane.heading + min(max(math.asin(command), -quarter), quarter)
        rate = self.KP_HEADING * wrap_to_pi(heading_ref - self.heading)
        slip = math.asin(min(max(self.LENGTH / 2 / speed * rate, -1.0), 1.0))
        steering = math.atan(2 * math.tan(slip))
        return float(min(max(steering, -self.MAX_STEERING_ANGLE), self.MAX_STEERING_ANGLE))

    def _desired_gap(self, ego: Any, front: Any) -> float:
        _, _, c, s = ego.now
        _, _, cf, sf = front.now
        ab = -self.COMFORT_ACC_MAX * self.COMFORT_ACC_MIN
        dv = (ego.speed * c - front.speed * cf) * c + (ego.speed * s - front.speed * sf) * s
        gap = self.DISTANCE_WANTED + ego.speed * self.TIME_WANTED
        return float(gap + ego.speed * dv / (2 * math.sqrt(ab)))

    def _idm(self, ego: Any, front: Any) -> float:
        """IDM acceleration of ``ego`` behind ``front`` (m/s^2), as `IDMVehicle.acceleration`."""
        if ego is None:
            return 0.0
        target = getattr(ego, "target_speed", 0)
        limit = ego.lane.speed_limit
        if limit is not None:
            target = min(max(target, 0), limit)
        ratio = max(ego.speed, 0) / abs(not_zero(target))
        acceleration = self.COMFORT_ACC_MAX * (1 - math.pow(ratio, self.DELTA))
        if front is not None:
            d = not_zero(front.now[0] - ego.now[0])
            acceleration -= self.COMFORT_ACC_MAX * (self._desired_gap(ego, front) / d) ** 2
        return float(acceleration)

    def mobil(self, lane_index: Any) -> bool:
        """MOBIL with politeness 0 and no route; anything else is left to highway-env."""
        if self.road.snapshot is None or self.route or self.POLITENESS:
            return bool(super().mobil(lane_index))
        new_front, new_rear = self.road.neighbour_vehicles(self, lane_index)
        if self._idm(new_rear, self) < -self.LANE_CHANGE_MAX_BRAKING_IMPOSED:
            return False
        old_front, _ = self.road.neighbour_vehicles(self)
        gain = self._idm(self, new_front) - self._idm(self, old_front)
        return bool(gain >= self.LANE_CHANGE_MIN_ACC_GAIN)

    def change_lane_policy(self) -> None:
        """As `IDMVehicle.change_lane_policy`; the abort rule reads the snapshot."""
        if self.road.snapshot is None or self.lane_index == self.target_lane_index:
            super().change_lane_policy()
            return
        for other in self.road.vehicles:
            if (
                other is not self
                and isinstance(other, ControlledVehicle)
                and other.target_lane_index == self.target_lane_index
                and other.lane_index != self.target_lane_index
                and 0 < other.now[0] - self.now[0] < self._desired_gap(self, other)
            ):
                self.target_lane_index = self.lane_index
                break


class EgoVehicle(Vehicle):  # type: ignore[misc]
    """The driven car: highway-env's kinematic bicycle that brakes to a stop and stays there.

    ``target_speed`` is what the traffic's MOBIL assumes the car wants. A plain `Vehicle` has none;
    highway-env then assumes 0, computes an enormous braking for it and never cuts in ahead of it.
    """

    MIN_SPEED = 0.0
    target_speed = 30.0
    speed: float
    action: dict[str, float]

    def step(self, dt: float) -> None:
        if self.crashed or self.impact is not None:
            super().step(dt)
            return
        action = self.action
        lowest, highest = -self.speed / dt, (self.MAX_SPEED - self.speed) / dt
        self.action = {
            "steering": float(action["steering"]),
            "acceleration": float(min(max(action["acceleration"], lowest), highest)),
        }
        _drive(self, dt)
        if self.speed < 1e-9:
            self.speed = 0.0


def straight_road(lanes: int, np_random: np.random.Generator, record_history: bool) -> FastRoad:
    """An empty `FastRoad` of parallel lanes, 4 m apart, lane 0 at y = 0 (the leftmost)."""
    return FastRoad(network=FastNetwork(lanes), np_random=np_random, record_history=record_history)
