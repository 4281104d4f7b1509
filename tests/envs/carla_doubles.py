"""Doubles of CARLA's client types: those of their attributes that wmrt reads, and no more.

tests/oracles/test_carla.py holds each of them to the real class. The world is a road of the shape
of `ROAD`, OpenDRIVE text that the real client reads: a lane 3.5 m wide, 100 m straight along +x,
then an arc to the right of 100 m radius (at the road's edge; the lane's centre is 1.75 m inside).
"""

from __future__ import annotations

import enum
import fnmatch
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

START, STRAIGHT, RADIUS, WIDTH = 10.0, 100.0, 100.0, 3.5
END = STRAIGHT + RADIUS * math.pi / 2

_LANE = (
    '<lanes><laneSection s="0"><center><lane id="0" type="none" level="false"/></center><right>'
    '<lane id="-1" type="driving" level="false"><link><{link} id="-1"/></link>'
    f'<width sOffset="0" a="{WIDTH}" b="0" c="0" d="0"/></lane></right></laneSection></lanes>'
)
_ROAD = (
    '<road name="{name}" length="{length}" id="{id}" junction="-1"><link><{link} '
    'elementType="road" elementId="{other}" contactPoint="{contact}"/></link><planView>'
    '<geometry s="0" x="{x}" y="0" hdg="0" length="{length}">{shape}</geometry></planView>'
    "<elevationProfile/><lateralProfile/>{lane}</road>"
)
#: OpenDRIVE's y is to the left and a negative curvature to the right; CARLA mirrors y.
ROAD = (
    '<?xml version="1.0" standalone="yes"?><OpenDRIVE><header revMajor="1" revMinor="4" name="" '
    'version="1.00" north="0" south="0" east="0" west="0"/>'
    + _ROAD.format(
        name="straight", length=STRAIGHT, id=1, link="successor", other=2, contact="start",
        x=START, shape="<line/>", lane=_LANE.format(link="successor"),
    )
    + _ROAD.format(
        name="bend", length=END - STRAIGHT, id=2, link="predecessor", other=1, contact="end",
        x=START + STRAIGHT, shape=f'<arc curvature="{-1 / RADIUS}"/>',
        lane=_LANE.format(link="predecessor"),
    )
    + "</OpenDRIVE>"
)  # fmt: skip


@dataclass
class Vector3D:
    x: float = 0.0
    y: float = 0.0
    z: float = 0.0


class Location(Vector3D):
    pass


@dataclass
class Rotation:
    pitch: float = 0.0
    yaw: float = 0.0
    roll: float = 0.0


@dataclass
class Transform:
    location: Location = field(default_factory=Location)
    rotation: Rotation = field(default_factory=Rotation)


@dataclass
class BoundingBox:
    location: Location = field(default_factory=lambda: Location(0.1, 0.0, 0.7))
    extent: Vector3D = field(default_factory=lambda: Vector3D(2.4, 1.0, 0.7))


@dataclass
class VehicleControl:
    throttle: float = 0.0
    steer: float = 0.0
    brake: float = 0.0
    hand_brake: bool = False
    reverse: bool = False
    manual_gear_shift: bool = False


class TrafficLightState(enum.Enum):
    Red = 0
    Yellow = 1
    Green = 2
    Off = 3
    Unknown = 4


@dataclass
class Vector2D:
    x: float
    y: float


@dataclass
class WheelPhysicsControl:
    max_steer_angle: float = 70.0


@dataclass
class VehiclePhysicsControl:
    wheels: list[Any] = field(
        default_factory=lambda: [WheelPhysicsControl(a) for a in (70.0, 70.0, 0.0, 0.0)]
    )
    steering_curve: list[Any] = field(
        default_factory=lambda: [
            Vector2D(x, y) for x, y in ((0.0, 1.0), (20.0, 0.9), (60.0, 0.8), (120.0, 0.7))
        ]
    )


@dataclass
class WorldSettings:
    synchronous_mode: bool = False
    fixed_delta_seconds: float | None = None
    substepping: bool = True
    max_substep_delta_time: float = 0.01
    max_substeps: int = 10


@dataclass
class Timestamp:
    frame: int = 0
    elapsed_seconds: float = 0.0
    delta_seconds: float = 0.0


class Waypoint:
    def __init__(self, s: float) -> None:
        self._s = s
        self.transform = pose(s)
        self.lane_width = WIDTH
        self.is_junction = False

    def next(self, distance: float) -> list[Waypoint]:
        return [Waypoint(self._s + distance)] if self._s + distance < END else []


def pose(s: float, right: float = 0.0) -> Transform:
    """``s`` m along the road's edge, ``right`` m to the right of the lane's centre."""
    off = WIDTH / 2 + right
    if s <= STRAIGHT:
        return Transform(Location(START + s, off, 0.0), Rotation())
    angle = (s - STRAIGHT) / RADIUS
    radius = RADIUS - off
    x, y = START + STRAIGHT + radius * math.sin(angle), RADIUS - radius * math.cos(angle)
    return Transform(Location(x, y, 0.0), Rotation(yaw=math.degrees(angle)))


class Map:
    def get_waypoint(self, location: Location) -> Waypoint | None:
        s = location.x - START
        if s > STRAIGHT:
            s = STRAIGHT + RADIUS * math.atan2(s - STRAIGHT, RADIUS - location.y)
        return Waypoint(min(max(s, 0.0), END))


class ActorSnapshot:
    def __init__(self, id: int, transform: Transform, velocity: Vector3D) -> None:
        self.id = id
        self._transform, self._velocity = transform, velocity
        self._acceleration, self._angular = Vector3D(), Vector3D()

    def get_transform(self) -> Transform:
        return self._transform

    def get_velocity(self) -> Vector3D:
        return self._velocity

    def get_acceleration(self) -> Vector3D:
        return self._acceleration

    def get_angular_velocity(self) -> Vector3D:
        return self._angular


class Vehicle:
    """The double moves along its yaw: 5 m/s^2 of throttle, 10 of brake, and turns by its steer."""

    type_id = "vehicle.double"

    def __init__(self, id: int, transform: Transform, speed: float = 0.0) -> None:
        self.id = id
        self.bounding_box = BoundingBox()
        self._control = VehicleControl()
        self._physics = VehiclePhysicsControl()
        self._light: TrafficLightState | None = None
        self._limit = 50.0
        self._transform, self._speed = transform, speed

    def get_physics_control(self) -> VehiclePhysicsControl:
        return self._physics

    def get_control(self) -> VehicleControl:
        return self._control

    def apply_control(self, control: VehicleControl) -> None:
        self._control = replace(control)

    def is_at_traffic_light(self) -> bool:
        return self._light is not None

    def get_traffic_light_state(self) -> TrafficLightState:
        return TrafficLightState.Green if self._light is None else self._light

    def get_speed_limit(self) -> float:
        return self._limit

    def _move(self, seconds: float) -> ActorSnapshot:
        gain = 5.0 * self._control.throttle - 10.0 * self._control.brake
        self._speed = max(self._speed + gain * seconds, 0.0)
        old, wheel = self._transform, math.radians(70.0) * self._control.steer
        turn = self._speed * math.tan(wheel) / 2.8
        yaw = old.rotation.yaw + math.degrees(turn * seconds)
        ahead = Vector3D(math.cos(math.radians(yaw)), math.sin(math.radians(yaw)))
        x, y = (getattr(old.location, n) + self._speed * seconds * getattr(ahead, n) for n in "xy")
        self._transform = Transform(Location(x, y, 0.0), Rotation(yaw=yaw))
        velocity = Vector3D(self._speed * ahead.x, self._speed * ahead.y)
        seen = ActorSnapshot(self.id, self._transform, velocity)
        seen._acceleration = Vector3D(gain * ahead.x, gain * ahead.y)
        seen._angular = Vector3D(z=math.degrees(turn))
        return seen


class ActorList(list[Any]):
    def filter(self, wildcard: str) -> list[Any]:
        return [actor for actor in self if fnmatch.fnmatch(actor.type_id, wildcard)]


class WorldSnapshot:
    def __init__(self, timestamp: Timestamp, actors: dict[int, ActorSnapshot]) -> None:
        self.frame, self.timestamp, self._actors = timestamp.frame, timestamp, actors

    def find(self, actor_id: int) -> ActorSnapshot | None:
        return self._actors.get(actor_id)


class World:
    """Moves its vehicles when ticked, and calls the sensors, as CARLA does from another thread."""

    def __init__(self, *vehicles: Vehicle) -> None:
        self._vehicles, self._map = list(vehicles), Map()
        self._settings = WorldSettings()
        self._snapshot = WorldSnapshot(Timestamp(), {})
        self._on_tick: list[Callable[[Timestamp], None]] = []

    def get_map(self) -> Map:
        return self._map

    def get_settings(self) -> WorldSettings:
        return replace(self._settings)

    def apply_settings(self, settings: WorldSettings) -> int:
        self._settings = replace(settings)
        return self._snapshot.frame

    def get_actors(self) -> ActorList:
        return ActorList([*self._vehicles, SimpleNamespace(id=900, type_id="walker.double")])

    def tick(self, seconds: float = 10.0) -> int:
        delta, last = self._settings.fixed_delta_seconds, self._snapshot.timestamp
        assert delta is not None
        now = Timestamp(last.frame + 1, last.elapsed_seconds + delta, delta)
        seen = {vehicle.id: vehicle._move(delta) for vehicle in self._vehicles}
        self._snapshot = WorldSnapshot(now, seen)
        for report in self._on_tick:
            report(now)
        return now.frame

    def get_snapshot(self) -> WorldSnapshot:
        return self._snapshot


class Sensor:
    def __init__(self, id: int, type_id: str) -> None:
        self.id, self.type_id = id, type_id
        self._callback: Callable[[Any], None] | None = None

    def listen(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def _report(self, data: Any) -> None:
        assert self._callback is not None
        self._callback(data)


@dataclass
class IMUMeasurement:
    frame: int
    timestamp: float
    accelerometer: Vector3D = field(default_factory=Vector3D)
    gyroscope: Vector3D = field(default_factory=Vector3D)


@dataclass
class ObstacleDetectionEvent:
    frame: int
    timestamp: float
    distance: float = 0.0


#: What `CarlaCar` takes of the module.
CLIENT = SimpleNamespace(VehicleControl=VehicleControl)
#: Every double, to be held to the class of its name.
DOUBLES: tuple[type, ...] = (
    Vector3D, Location, Rotation, Transform, BoundingBox, VehicleControl, TrafficLightState,
    Vector2D, WheelPhysicsControl, VehiclePhysicsControl, WorldSettings, Timestamp, Waypoint, Map,
    ActorSnapshot, Vehicle, ActorList, WorldSnapshot, World, Sensor, IMUMeasurement,
    ObstacleDetectionEvent,
)  # fmt: skip
