"""A CARLA vehicle under a controller: synchronous ticks, typed state, pedals and wheel.

Not run against a CARLA server: no machine of ours has one. It is tested with doubles that have the
attributes of the client's types, and with those types and the client's map themselves (carla
0.9.16, extra ``[carla]``; ``make test-oracles``).

    world = carla.Client("localhost", 2000).get_world()
    with CarlaCar(world, vehicle) as car:
        controller = Controller(model, car.period, clock=car.clock)
        controller.reset(car.measured())
        for _ in range(1000):
            seen = car.tick()
            car.apply(controller.act(seen.state, seen.captured_ns))

The model is one trained for `carla_schema` and `ACTIONS`; wmrt ships none. A traffic manager needs
``set_synchronous_mode(True)`` of its own.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

from wmrt.control import settings as checks
from wmrt.core.errors import DeviceError, UsageError
from wmrt.core.extras import require
from wmrt.core.types import ActionSpec
from wmrt.envs.carla_road import Body, body, curvature, lane_ahead, lead
from wmrt.envs.carla_sensors import Sensors, nanoseconds
from wmrt.envs.carla_state import (
    ACTIONS,
    Wheels,
    carla_schema,
    from_control,
    lane_pose,
    light,
    motion,
    to_control,
)
from wmrt.model.schema import StateSchema

PERIOD = 0.05  # s


class Seen(NamedTuple):
    """What a tick showed.

    Attributes:
        state: the fields of `carla_schema`.
        captured_ns: when each of those that are known was captured, on `CarlaCar.clock`.
        frame: CARLA's number of the tick.
        silent: sensors that did not report this frame in time; their values are older.
    """

    state: dict[str, Any]
    captured_ns: dict[str, int]
    frame: int
    silent: tuple[str, ...]


class SimulationClock:
    """The simulator's time: nanoseconds since the episode began, at the last tick."""

    def __init__(self) -> None:
        self._now = 0

    def now_ns(self) -> int:
        return self._now

    def set(self, now_ns: int) -> None:
        self._now = now_ns


class CarlaCar:
    """One vehicle of a CARLA world that this client alone ticks.

    As a context manager it makes the world synchronous with a fixed step, and at the end brakes the
    car and puts the settings back.

    Args:
        world: a ``carla.World``.
        vehicle: a ``carla.Vehicle`` of it.
        period: seconds a tick, which is the control period.
        sensors: attached ones, whose values replace the simulator's own where both have a field.
        patience: seconds of real time to wait for a tick, and then for the sensors' reports of it.
        client: the module ``carla``.

    Attributes:
        clock: for `Controller`.

    Raises:
        SafetyError: a period or a patience that is no time.
        UsageError: a vehicle that cannot be steered.
        MissingExtraError: ``client`` is not given and carla is not installed.
    """

    def __init__(
        self,
        world: Any,
        vehicle: Any,
        *,
        period: float = PERIOD,
        sensors: Sensors | None = None,
        patience: float = 10.0,
        client: Any = None,
    ) -> None:
        self.period = checks.seconds("period", period)
        self.clock = SimulationClock()
        self._client = require("carla", "carla") if client is None else client
        self._world, self._vehicle = world, vehicle
        self._sensors = Sensors() if sensors is None else sensors
        self._patience = checks.seconds("patience", patience)
        self._map = world.get_map()
        self._wheels = Wheels.of(vehicle.get_physics_control())
        self._lock = self._wheels.at(0.0)
        self._settings: Any = None

    @property
    def state_schema(self) -> StateSchema:
        return carla_schema()

    @property
    def action_spec(self) -> ActionSpec:
        return ACTIONS

    def __enter__(self) -> CarlaCar:
        kept, settings = self._world.get_settings(), self._world.get_settings()
        longest = settings.max_substep_delta_time * settings.max_substeps
        if settings.substepping and self.period > longest + 1e-9:
            raise UsageError(
                f"a period of {self.period} s is longer than {longest} s, which is "
                "max_substep_delta_time x max_substeps of this world; its physics would be wrong"
            )
        settings.synchronous_mode = True
        settings.fixed_delta_seconds = self.period
        self._world.apply_settings(settings)
        self._settings = kept
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._vehicle.apply_control(self._client.VehicleControl(brake=1.0))
        finally:
            self._world.apply_settings(self._settings)
            self._settings = None

    def tick(self) -> Seen:
        """Let the world go on by one period, and look.

        Raises:
            UsageError: outside of ``with``, or the world was ticked or set by somebody else.
            DeviceError: the vehicle is gone.
        """
        if self._settings is None:
            raise UsageError("tick: the world is not synchronous; use `with CarlaCar(...) as car`")
        frame = self._world.tick(self._patience)
        snapshot = self._world.get_snapshot()
        passed = snapshot.timestamp.delta_seconds
        if snapshot.frame != frame or abs(passed - self.period) > 1e-6:
            raise UsageError(
                f"tick: frame {frame} was asked for and took {self.period} s, and the world shows "
                f"frame {snapshot.frame} after {passed} s; let no other client tick or set it"
            )
        self.clock.set(nanoseconds(snapshot.timestamp.elapsed_seconds))
        silent = self._sensors.wait(frame, self._patience)
        state = self._look(snapshot)
        # What nobody said has no time: else a report that comes late would be out of order.
        told = [name for name, value in state.items() if value is not None]
        captured = dict.fromkeys(told, self.clock.now_ns())
        values, times = self._sensors.read()
        return Seen({**state, **values}, {**captured, **times}, frame, silent)

    def apply(self, action: Any) -> None:
        """Send an action, normalised (steering, pedal); it acts from the next tick on.

        Raises `StateError` when it is not two finite numbers.
        """
        control = to_control(action, self._lock, self._client.VehicleControl)
        self._vehicle.apply_control(control)

    def measured(self) -> tuple[float, float]:
        """The control in force as an action, normalised: what a controller starts from."""
        given = from_control(self._vehicle.get_control(), self._lock)
        steering, pedal = (
            dim.to_normalised(value) for dim, value in zip(ACTIONS.dims, given, strict=True)
        )
        return steering, pedal

    def _look(self, snapshot: Any) -> dict[str, Any]:
        vehicle = self._vehicle
        ego = snapshot.find(vehicle.id)
        if ego is None:
            raise DeviceError(f"vehicle {vehicle.id} is gone from the simulation; spawn it again")
        moves = motion(ego)
        self._lock = self._wheels.at(moves.speed)
        steering, pedal = from_control(vehicle.get_control(), self._lock)
        state: dict[str, Any] = {
            **moves._asdict(),
            **self._lane(snapshot, ego),
            "steering": steering,
            "pedal": pedal,
            "traffic_light": light(vehicle),
            "speed_limit": float(vehicle.get_speed_limit()) / 3.6,
            "obstacle_gap": None,
        }
        return {name: state[name] for name in carla_schema().fields}

    def _lane(self, snapshot: Any, ego: Any) -> dict[str, Any]:
        """The fields that need a lane: all None where the map has none."""
        names = ("heading", "lane_offset", "lane_width", "curvature", "junction")
        transform = ego.get_transform()
        waypoint = self._map.get_waypoint(transform.location)
        if waypoint is None:
            return dict.fromkeys((*names, "lead_gap", "lead_dv"))
        path = lane_ahead(waypoint)
        width = float(waypoint.lane_width)
        own = body(ego, self._vehicle.bounding_box)
        gap, dv = lead(path, width, own, self._others(snapshot))
        heading, offset = lane_pose(transform, waypoint.transform)
        found = (heading, offset, width, curvature(path), bool(waypoint.is_junction))
        return {**dict(zip(names, found, strict=True)), "lead_gap": gap, "lead_dv": dv}

    def _others(self, snapshot: Any) -> list[Body]:
        """Every other vehicle, as of the same frame."""
        found = []
        for actor in self._world.get_actors().filter("vehicle.*"):
            seen = None if actor.id == self._vehicle.id else snapshot.find(actor.id)
            if seen is not None:
                found.append(body(seen, actor.bounding_box))
        return found
