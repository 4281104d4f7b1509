"""A CARLA car in a loop, on doubles; not run against a server."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.envs import carla_doubles as double
from tests.envs.carla_doubles import CLIENT, IMUMeasurement, ObstacleDetectionEvent, Sensor, pose
from tests.safety.support import Watch
from wmrt.control import Controller
from wmrt.core.errors import DeviceError, SafetyError, StateError, UsageError
from wmrt.envs.carla import CarlaCar
from wmrt.envs.carla_sensors import Sensors
from wmrt.envs.carla_state import ACTIONS, RANGE, carla_schema


def scene(*others: double.Vehicle, s: float = 0.0, **options: Any) -> tuple[Any, Any, CarlaCar]:
    ego = double.Vehicle(1, pose(s), options.pop("speed", 0.0))
    world = double.World(ego, *others)
    return world, ego, CarlaCar(world, ego, client=CLIENT, **options)


class Follow:
    """10 m/s along the lane, 2 s behind whoever is ahead."""

    schema, actions = carla_schema(), ACTIONS

    def reset(self) -> None:
        pass

    def step(self, state: Any, previous_action: Any) -> Any:
        speed, gap = state["speed"], state["lead_gap"]
        wanted = 10.0 if gap is None else min(10.0, max(gap - 5.0, 0.0) / 2.0)
        pedal = min(max(0.5 * (wanted - speed), -1.0), 1.0)
        ahead = state["lane_offset"] + 8.0 * math.sin(state["heading"])
        angle = math.atan(2.8 * (state["curvature"] or 0.0)) - 0.05 * ahead
        steering = ACTIONS.dims[0].to_normalised(angle)
        step = np.float32([0.07, 0.09])  # within the rates
        wanted = np.clip(np.float32([steering, pedal]), -1.0, 1.0)
        action = np.clip(wanted, previous_action - step, previous_action + step)
        return SimpleNamespace(action=action)


def test_a_drive_around_the_bend() -> None:
    slow = double.Vehicle(2, pose(60.0), 4.0)
    world, ego, car = scene(slow, s=5.0)

    def around(now: double.Timestamp) -> None:
        if slow._transform.location.x > double.START + double.STRAIGHT:
            turn = math.atan(2.8 / (double.RADIUS - double.WIDTH / 2)) / math.radians(70.0)
            slow.apply_control(double.VehicleControl(steer=turn))

    world._on_tick.append(around)
    with car:
        controller = Controller(Follow(), car.period, math.inf, clock=car.clock)
        controller.reset(car.measured())
        watch = Watch(controller.breakers.limits, controller.breakers.reference)
        gaps, offsets = [], []
        for step in range(800):
            seen = car.tick()
            assert seen.frame == step + 1 and seen.silent == ()
            assert car.clock.now_ns() == round((step + 1) * 0.05 * 1e9)
            action = controller.act(seen.state, seen.captured_ns)
            watch.see(car.clock.now_ns(), action.tolist())
            outcome = controller.last
            assert outcome is not None and outcome.source in ("policy", "clamped", "blocked")
            car.apply(action)
            gaps.append(seen.state["lead_gap"])
            offsets.append(abs(seen.state["lane_offset"]))
    assert controller.stats()["trips"]["validity"] == controller.stats()["trips"]["range"] == 0
    assert max(offsets) < 0.5
    assert gaps[0] == pytest.approx(55.0 + 0.2 - 4.8, abs=0.01)
    assert min(gaps) > 5.0 and gaps[-1] == pytest.approx(5.0 + 2 * 4.0, abs=1.0)
    assert seen.state["speed"] == pytest.approx(4.0, abs=0.2)
    assert seen.state["heading"] == pytest.approx(0.0, abs=0.1)
    assert seen.state["curvature"] == pytest.approx(1 / 98.25, rel=0.01)
    assert ego.get_control().brake == 1.0  # left braking
    assert world.get_settings() == double.WorldSettings()  # and as it was


def test_the_state_of_a_moment() -> None:
    other = double.Vehicle(2, pose(40.0), 15.0)
    world, ego, car = scene(other, s=10.0, speed=20.0)
    ego._light, ego._limit = double.TrafficLightState.Red, 90.0
    ego.apply_control(double.VehicleControl(steer=-0.1, throttle=0.4))
    with car:
        settings = world.get_settings()
        assert settings.synchronous_mode and settings.fixed_delta_seconds == 0.05
        seen = car.tick()
    state = seen.state
    assert list(state) == list(carla_schema().fields)
    assert state["speed"] == pytest.approx(20.1)  # 20 m/s and 0.05 s at 0.4 of 5 m/s^2
    assert state["acceleration"] == pytest.approx(2.0)
    assert state["yaw_rate"] < 0.0 and state["heading"] < 0.0 and state["lane_offset"] < 0.0
    lock = math.radians(70.0) * (0.8 - 0.1 * (20.1 * 3.6 - 60.0) / 60.0)
    assert state["steering"] == pytest.approx(-0.1 * lock) and state["pedal"] == 0.4
    assert state["traffic_light"] == "red" and state["speed_limit"] == 25.0
    assert state["lead_gap"] == pytest.approx(30.0 - 0.25 - 4.8, abs=0.05)
    assert state["lead_dv"] == pytest.approx(-5.1, abs=0.05)
    assert (state["lane_width"], state["curvature"], state["junction"]) == (3.5, 0.0, False)
    assert state["obstacle_gap"] is None  # no sensor: unknown, not free
    _, issues = carla_schema().quantize(state)
    assert [issue.field for issue in issues] == ["obstacle_gap"]
    assert seen.captured_ns == dict.fromkeys(set(state) - {"obstacle_gap"}, 50_000_000)


def test_measured_is_what_was_applied(seed: int) -> None:
    _, _, car = scene()
    for action in np.random.default_rng(seed).uniform(-1.0, 1.0, (20, 2)):
        car.apply(action)
        assert car.measured() == pytest.approx(tuple(action))


def test_sensors_replace_what_the_simulator_says_and_bring_their_own_times() -> None:
    sensors, imu, obstacle = (
        Sensors(),
        Sensor(3, "sensor.other.imu"),
        Sensor(4, "sensor.other.obstacle"),
    )
    sensors.attach(imu)
    sensors.attach(obstacle)
    world, _, car = scene(speed=5.0, sensors=sensors, patience=0.01)

    def report(now: double.Timestamp) -> None:
        if now.frame != 3:  # one frame of the IMU is lost
            imu._report(IMUMeasurement(now.frame, now.elapsed_seconds, double.Vector3D(1.25)))
        if now.frame == 2:
            obstacle._report(ObstacleDetectionEvent(now.frame, now.elapsed_seconds, 7.5))

    world._on_tick.append(report)
    with car:
        first, second, third = car.tick(), car.tick(), car.tick()
    assert first.state["acceleration"] == 1.25 and first.state["obstacle_gap"] is None
    assert second.state["obstacle_gap"] == 7.5 and second.silent == ()
    assert third.silent == ("sensor.other.imu 3",)
    ages = {name: car.clock.now_ns() - at for name, at in third.captured_ns.items()}
    assert ages["obstacle_gap"] == ages["acceleration"] == ages["yaw_rate"] == 50_000_000
    assert ages["speed"] == 0


def test_a_report_of_an_obstacle_comes_late_and_grows_old() -> None:
    """It is used although nothing came of a later frame, and no longer than half a second."""
    sensors, obstacle = Sensors(), Sensor(4, "sensor.other.obstacle")
    sensors.attach(obstacle)
    _, _, car = scene(speed=5.0, sensors=sensors)
    policy = Follow()
    gaps: list[float | None] = []
    plain = policy.step

    def step(state: Any, previous_action: Any) -> Any:
        gaps.append(state["obstacle_gap"])
        return plain(state, previous_action)

    policy.step = step  # type: ignore[method-assign]
    with car:
        controller = Controller(policy, car.period, math.inf, clock=car.clock)
        for frame in range(1, 21):
            seen = car.tick()
            if frame == 5:
                obstacle._report(ObstacleDetectionEvent(4, 4 * car.period, 12.5))
            controller.act(seen.state, seen.captured_ns)
    # Captured in frame 4, seen in frame 6, half a second old in frame 14.
    assert gaps == [None] * 5 + [12.5] * 9 + [None] * 6
    assert controller.stats()["trips"]["validity"] == 0


def test_without_a_lane_the_car_is_not_driven() -> None:
    world, _, car = scene(speed=5.0)
    world._map.get_waypoint = lambda location: None
    with car:
        controller = Controller(Follow(), car.period, math.inf, clock=car.clock)
        state = car.tick().state
        controller.act(state)
    assert state["lane_offset"] is None and state["lead_gap"] is None
    assert controller.last is not None and controller.last.source == "fallback"


def test_only_one_client_ticks() -> None:
    world, _, car = scene()
    with pytest.raises(UsageError, match="the world is not synchronous"):
        car.tick()
    with car:
        car.tick()
        world.apply_settings(double.WorldSettings(True, 0.1))
        with pytest.raises(
            UsageError, match=r"took 0\.05 s, and the world shows frame 2 after 0\.1 s"
        ):
            car.tick()
        world.apply_settings(double.WorldSettings(True, 0.05))
        plain = world.tick

        def twice(seconds: float) -> int:
            frame = plain(seconds)
            plain(seconds)
            return frame

        world.tick = twice
        with pytest.raises(UsageError, match="the world shows frame 4"):
            car.tick()


def test_a_vehicle_that_is_gone() -> None:
    world, ego, car = scene()
    with car:
        world._vehicles.remove(ego)
        with pytest.raises(DeviceError, match="vehicle 1 is gone"):
            car.tick()


def test_the_settings_come_back_whatever_happens() -> None:
    world, ego, car = scene()

    def refuse(control: Any) -> None:
        raise RuntimeError("destroyed")

    with pytest.raises(RuntimeError, match="destroyed"), car:
        ego.apply_control = refuse
    assert world.get_settings() == double.WorldSettings()


def test_periods() -> None:
    world, _, car = scene(period=0.2)
    with pytest.raises(UsageError, match=r"a period of 0\.2 s is longer than 0\.1 s"), car:
        pass
    assert world.get_settings() == double.WorldSettings()
    world.apply_settings(double.WorldSettings(substepping=False))
    with car:
        assert car.tick().captured_ns["speed"] == 200_000_000
    with pytest.raises(SafetyError, match="period must be a finite number of seconds above 0"):
        scene(period=0.0)
    with pytest.raises(SafetyError, match="patience must be"):
        scene(patience=math.inf)


def test_no_nan_reaches_the_vehicle() -> None:
    _, ego, car = scene()
    with pytest.raises(StateError):
        car.apply([math.nan, 0.0])
    assert ego.get_control() == double.VehicleControl()
    assert car.state_schema is carla_schema() and car.action_spec is ACTIONS and RANGE == 100.0
