"""Readings of CARLA's sensors and when they were captured; not run against a server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.envs.carla_doubles import IMUMeasurement, ObstacleDetectionEvent, Sensor, Vector3D
from wmrt.core.errors import UsageError
from wmrt.envs.carla_sensors import READERS, Sensors
from wmrt.envs.carla_state import carla_schema


def imu(frame: int, seconds: float, **values: Any) -> IMUMeasurement:
    return IMUMeasurement(frame, seconds, **values)


def attached() -> tuple[Sensors, Sensor, Sensor]:
    sensors, one, other = (
        Sensors(),
        Sensor(5, "sensor.other.imu"),
        Sensor(6, "sensor.other.obstacle"),
    )
    sensors.attach(one)
    sensors.attach(other)
    return sensors, one, other


def test_values_and_their_times() -> None:
    sensors, one, other = attached()
    assert sensors.read() == ({}, {})
    one._report(
        imu(3, 0.15, accelerometer=Vector3D(1.5, -0.5, 9.8), gyroscope=Vector3D(0.0, 0.0, 0.2))
    )
    other._report(ObstacleDetectionEvent(2, 0.1, 12.5))
    values, captured = sensors.read()
    assert values == {
        "acceleration": 1.5,
        "lateral_acceleration": -0.5,
        "yaw_rate": 0.2,
        "obstacle_gap": 12.5,
    }
    assert captured == {
        "acceleration": 150_000_000,
        "lateral_acceleration": 150_000_000,
        "yaw_rate": 150_000_000,
        "obstacle_gap": 100_000_000,
    }
    assert set(values) <= set(carla_schema().fields)
    assert all(carla_schema().fields[name].max_age == 0.5 for name in values)


def test_a_silent_sensor_keeps_its_old_time() -> None:
    sensors, one, _ = attached()
    one._report(imu(4, 0.2))
    one._report(imu(3, 0.15))  # late
    assert sensors.read()[1]["yaw_rate"] == 200_000_000


def test_waiting_for_a_frame() -> None:
    sensors, one, _ = attached()
    assert sensors.wait(1, 0.0) == ("sensor.other.imu 5",)
    threading.Timer(0.05, lambda: one._report(imu(7, 0.35))).start()
    assert sensors.wait(7, 60.0) == ()
    assert sensors.wait(8, 0.01) == ("sensor.other.imu 5",)
    assert Sensors().wait(8, 60.0) == ()


def test_who_is_waited_for() -> None:
    sensors = Sensors()
    sensors.attach(Sensor(1, "sensor.other.imu"), every_frame=False)
    sensors.attach(Sensor(2, "sensor.other.obstacle"), every_frame=True)
    assert sensors.wait(1, 0.0) == ("sensor.other.obstacle 2",)


def test_a_reader_that_fails_is_silence_and_counted() -> None:
    sensors, one, _ = attached()
    one._report(imu(1, 0.05))
    one._report(object())
    assert sensors.failures == {"sensor.other.imu 5": 1, "sensor.other.obstacle 6": 0}
    assert sensors.read()[1]["yaw_rate"] == 50_000_000


def test_readers() -> None:
    sensors = Sensors()
    camera = Sensor(9, "sensor.camera.rgb")
    with pytest.raises(UsageError, match=r"no reader for sensor\.camera\.rgb; give read="):
        sensors.attach(camera)
    sensors.attach(camera, lambda data: {"speed": 1.0})
    camera._report(imu(1, 0.05))
    assert sensors.read() == ({"speed": 1.0}, {"speed": 50_000_000})
    with pytest.raises(UsageError, match=r"sensor\.camera\.rgb 9 is attached already"):
        sensors.attach(camera, lambda data: {})
    assert set(READERS) == {"sensor.other.imu", "sensor.other.obstacle"}
