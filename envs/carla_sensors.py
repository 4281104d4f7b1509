"""Readings of CARLA's sensors, each with the time it was captured.

Not run against a CARLA server; see `carla_state`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wmrt.core.errors import UsageError


class _Latest(NamedTuple):
    frame: int
    captured_ns: int
    values: dict[str, Any]


def nanoseconds(seconds: float) -> int:
    """A CARLA time, seconds since the episode began."""
    return round(seconds * 1e9)


def imu(data: Any) -> dict[str, Any]:
    """Fields from a ``carla.IMUMeasurement``: m/s^2, rad/s; forward, right, right turn."""
    return {
        "acceleration": float(data.accelerometer.x),
        "lateral_acceleration": float(data.accelerometer.y),
        "yaw_rate": float(data.gyroscope.z),
    }


def obstacle(data: Any) -> dict[str, Any]:
    """The field from a ``carla.ObstacleDetectionEvent``: m.

    The sensor speaks only when there is something. Silence is not the same as nothing there, so
    without a report the field is unknown, never `RANGE`.
    """
    return {"obstacle_gap": float(data.distance)}


#: How to read a sensor, by the id of its blueprint.
READERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "sensor.other.imu": imu,
    "sensor.other.obstacle": obstacle,
}


class Sensors:
    """The latest reading of each sensor. CARLA's threads write, the control loop reads.

    A sensor that falls silent keeps its last values with their old time, for ``max_age`` of the
    controller to judge. One whose reader fails is as silent, and counted.

    Attributes:
        failures: readings that could not be read, by sensor.
    """

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}
        self._latest: dict[str, _Latest] = {}
        self._every_frame: set[str] = set()
        self._changed = threading.Condition()

    def attach(
        self,
        sensor: Any,
        read: Callable[[Any], Mapping[str, Any]] | None = None,
        *,
        every_frame: bool | None = None,
    ) -> None:
        """Listen to a ``carla.Sensor``.

        Args:
            read: measurement -> values by field name; default from `READERS`.
            every_frame: it reports in every frame, so that `wait` waits for it; default all but
                the obstacle detector. A sensor with a ``sensor_tick`` above the period does not.

        Raises:
            UsageError: no reader for this kind of sensor, or it is attached already.
        """
        kind, name = str(sensor.type_id), f"{sensor.type_id} {sensor.id}"
        read = READERS.get(kind) if read is None else read
        if read is None:
            raise UsageError(f"no reader for {kind}; give read=, or take one of {sorted(READERS)}")
        if name in self.failures:
            raise UsageError(f"{name} is attached already")
        self.failures[name] = 0
        if every_frame or (every_frame is None and kind != "sensor.other.obstacle"):
            self._every_frame.add(name)
        reader = read
        sensor.listen(lambda data: self._put(name, reader, data))

    def _put(self, name: str, read: Callable[[Any], Mapping[str, Any]], data: Any) -> None:
        try:
            latest = _Latest(int(data.frame), nanoseconds(data.timestamp), dict(read(data)))
        except Exception:  # in a thread of CARLA's, where nobody would see it
            with self._changed:
                self.failures[name] += 1
            return
        with self._changed:
            before = self._latest.get(name)
            if before is None or latest.frame >= before.frame:
                self._latest[name] = latest
                self._changed.notify_all()

    def wait(self, frame: int, seconds: float) -> tuple[str, ...]:
        """Wait until every sensor that reports in every frame has reported ``frame``.

        Returns:
            the names of those that have not, in ``seconds`` of real time.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while (missing := self._missing(frame)) and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
        return missing

    def _missing(self, frame: int) -> tuple[str, ...]:
        latest = self._latest
        return tuple(
            name
            for name in sorted(self._every_frame)
            if name not in latest or latest[name].frame < frame
        )

    def read(self) -> tuple[dict[str, Any], dict[str, int]]:
        """(values by field, nanoseconds of their capture by field)."""
        values: dict[str, Any] = {}
        captured: dict[str, int] = {}
        with self._changed:
            for latest in self._latest.values():
                values.update(latest.values)
                captured.update(dict.fromkeys(latest.values, latest.captured_ns))
        return values, captured
