"""highway-env's drivers and the driven car, computed with plain floats (see `road`).

Same formulas and decisions as highway-env 1.12. Inside `FastRoad.act` every vehicle carries
``now``, its (x, y, cos heading, sin heading).
"""

from __future__ import annotations

import math
from typing import Any

from highway_env.vehicle.behavior import IDMVehicle  # type: ignore[import-untyped]
from highway_env.vehicle.controller import ControlledVehicle  # type: ignore[import-untyped]
from highway_env.vehicle.kinematics import Vehicle  # type: ignore[import-untyped]

from wmrt.envs.road import wrap_to_pi


def not_zero(value: float, eps: float = 1e-2) -> float:
    """The value, or +-eps when it is nearer to zero than that (highway-env's guard)."""
    if abs(value) > eps:
        return value
    return eps if value >= 0 else -eps


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
