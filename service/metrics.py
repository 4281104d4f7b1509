"""`/metrics`: what a `Host` counts, in Prometheus's text format.

Every label has few values: names of this code, and robots, of which a process has at most 16 at a
time. A robot's series go with its place.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from wmrt import __version__
from wmrt.safety import State
from wmrt.service.host import Host
from wmrt.service.meter import LEVELS, Histogram, RobotMeter
from wmrt.service.places import Place

#: Samples that are written in one go.
SLICE = 100
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one host, in a registry of their own: two hosts of a process do not mix.

    Args:
        connections: how many there are.
        dropped: log records that were lost.
    """

    def __init__(
        self,
        host: Host,
        connections: Callable[[], int] = lambda: 0,
        dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Service(host, connections, dropped))
        self.registry.register(_Robots(host))
        for standard in (ProcessCollector, PlatformCollector, GCCollector):
            standard(registry=self.registry)

    async def exposition(self) -> bytes:
        """The text, for `CONTENT_TYPE`. In the event loop, which serves robots between two of its
        parts: for 16 robots it takes 6 ms, of which they wait 0.9 at most. A thread would hold them
        up by the interpreter's turns, of 5 ms each."""
        parts = []
        for family in self.registry.collect():
            for start in range(0, max(1, len(family.samples)), SLICE):
                text = generate_latest(_Slice(family, start))
                parts.append(text.split(b"\n", 2)[2] if start else text)  # help and type come once
                await asyncio.sleep(0)
        return b"".join(parts)


class _Slice(Collector):
    """Some samples of one family."""

    def __init__(self, family: Metric, start: int) -> None:
        self._family = Metric(family.name, family.documentation, family.type)
        self._family.samples = family.samples[start : start + SLICE]

    def collect(self) -> Iterator[Metric]:
        yield self._family


class _Service(Collector):
    """What concerns the process as a whole."""

    def __init__(
        self, host: Host, connections: Callable[[], int], dropped: Callable[[], int]
    ) -> None:
        self._host, self._connections, self._dropped = host, connections, dropped

    def collect(self) -> Iterator[Metric]:
        yield from self._infos()
        yield from self._gauges()
        yield from self._durations()
        yield from self._counters()

    def _infos(self) -> Iterator[Metric]:
        build = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily(
            "wmrt_build", "What this process was built from.", build | {"torch": torch.__version__}
        )
        host = self._host
        described = host.crew.described
        resolved = described.get("resolved", {})
        facts = {
            "model": described.get("model"),
            "model_sha256": described.get("model_sha256"),
            "schema": host.schema.hash,
            "recipe": described.get("recipe"),
            "kernels": ",".join(sorted(described.get("kernels", ()))),
            **{key: resolved.get(key) for key in ("device", "executor", "isa", "graph")},
        }
        yield InfoMetricFamily("wmrt_model", "What steps, and how.", _texts(facts))

    def _gauges(self) -> Iterator[Metric]:
        host = self._host
        for name, help_, value in (
            ("ready", "Whether robots can be served: 1 or 0.", not host.reasons()),
            ("alive", "Whether it can go on without a restart: 1 or 0.", not host.dying()),
            ("period_seconds", "Of the control loop.", host.crew.period),
            ("deadline_seconds", "Of a step.", host.deadline),
            ("robots_limit", "How many robots it serves.", host.settings.robots),
            ("robots", "Robots that have a place.", len(host.registry.places)),
            ("connections", "Requests and WebSockets now.", self._connections()),
            (
                "snapshot_failures_in_a_row",
                "Since the last snapshot that was written.",
                0 if host.registry.store is None else host.registry.store.failing,
            ),
            (
                "breakers_unwritten",
                "Robots whose breakers' state the disk would not take.",
                len(host.registry.keeper.unwritten()),
            ),
        ):
            yield GaugeMetricFamily(f"wmrt_{name}", help_, value)
        ends = None if host.certificate is None else host.certificate.validity.ends
        if ends is not None:
            yield GaugeMetricFamily(
                "wmrt_tls_certificate_expiration_timestamp_seconds",
                "When the certificate that clients are shown ends, seconds since 1970.",
                ends.timestamp(),
            )

    def _durations(self) -> Iterator[Metric]:
        meter = self._host.meter
        for name, help_, histogram in (
            ("step_queue", "In the mailbox, before a step began.", meter.queue),
            ("step_policy", "Waiting for the policy, in steps that asked it.", meter.policy),
            ("step_breakers", "The rest of the controller's step.", meter.breakers),
            ("step_reply", "From the end of the step to its answer.", meter.reply),
            ("event_loop_lag", "How late the event loop was, ten times a second.", meter.lag),
        ):
            family = HistogramMetricFamily(f"wmrt_{name}_seconds", help_)
            family.add_metric([], *_buckets(histogram))
            yield family

    def _counters(self) -> Iterator[Metric]:
        host, meter, store = self._host, self._host.meter, self._host.registry.store
        yield _counter("refusals", "Times that it said no.", "reason", meter.refusals)
        yield _counter("sessions_opened", "By what the memory was.", "memory", meter.opened)
        for name, help_, value in (
            ("sessions_not_restored", "Snapshots that could not be used.", meter.not_restored),
            ("snapshots_written", "Memories kept.", 0 if store is None else store.written),
            ("snapshot_failures", "Memories not kept.", 0 if store is None else store.failed),
            ("audit_lines_lost", "Audit lines that were not written.", host.audit.lost),
            ("log_records_dropped", "Log records that were not written.", self._dropped()),
        ):
            yield CounterMetricFamily(f"wmrt_{name}", help_, value)


class _Robots(Collector):
    """What concerns each robot."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def collect(self) -> Iterator[Metric]:
        steps = HistogramMetricFamily(
            "wmrt_step_duration_seconds", "From an observation to its answer.", labels=["robot"]
        )
        for robot, place in self._places():
            steps.add_metric([robot], *_buckets(place.meter.step))
        yield steps
        yield self._by_robot("steps", "By the action's source.", "source", lambda m: m.sources)
        yield self._by_robot("breaker_trips", "Steps on which it tripped.", "level", _trips)
        yield self._by_robot("observations", "What became of them.", "outcome", _outcomes)
        late = CounterMetricFamily(
            "wmrt_deadline_misses", "Steps that missed their deadline.", labels=["robot"]
        )
        for robot, place in self._places():
            late.add_metric([robot], place.meter.late)
        yield late
        yield from self._states()

    def _places(self) -> list[tuple[str, Place]]:
        return list(self._host.registry.places.items())

    def _by_robot(
        self, name: str, help_: str, label: str, read: Callable[[RobotMeter], Mapping[str, int]]
    ) -> Metric:
        family = CounterMetricFamily(f"wmrt_{name}", help_, labels=["robot", label])
        for robot, place in self._places():
            for value, count in read(place.meter).items():
                family.add_metric([robot, value], count)
        return family

    def _states(self) -> Iterator[Metric]:
        places = self._places()
        states = GaugeMetricFamily(
            "wmrt_breakers_state", "1 for the state that they are in.", labels=["robot", "state"]
        )
        for robot, place in places:
            now = place.desk.state
            for state in State:
                states.add_metric([robot, state.value], state is now)
        yield states
        for name, help_, read in (
            ("robot_engaged", "Whether its policy may drive.", _engaged),
            ("robot_connected", "Whether a WebSocket is open; never so over HTTP.", _connected),
            ("policy_running_seconds", "How long its policy has been at a step.", _running),
        ):
            family = GaugeMetricFamily(f"wmrt_{name}", help_, labels=["robot"])
            for robot, place in places:
                family.add_metric([robot], read(place))
            yield family


def _trips(meter: RobotMeter) -> dict[str, int]:
    return {LEVELS[level]: count for level, count in meter.trips.items()}


def _outcomes(meter: RobotMeter) -> Mapping[str, int]:
    return meter.outcomes


def _engaged(place: Place) -> float:
    return float(place.engaged)


def _connected(place: Place) -> float:
    return float(place.session.holder is not None)


def _running(place: Place) -> float:
    return place.desk.policy.running()


def _counter(name: str, help_: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"wmrt_{name}", help_, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


def _buckets(histogram: Histogram) -> tuple[Sequence[tuple[str, float]], float]:
    """Cumulative buckets by their upper bound, and the sum in seconds."""
    edges = [*(repr(edge) for edge in histogram.edges), "+Inf"]
    found = list(zip(edges, map(float, accumulate(histogram.counts)), strict=True))
    return found, histogram.total_ns * 1e-9


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    told = {key: "" if value is None else str(value) for key, value in facts.items()}
    return told | {
        key: told[key].lower() for key, value in facts.items() if isinstance(value, bool)
    }
