"""`/metrics`: exact counts after a script, labels that end, who may read, what it costs."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from pathlib import Path
from timeit import repeat
from typing import Any

import httpx
import prometheus_client
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import state
from wmrt.core.wire import REFUSALS, Acted
from wmrt.service.meter import EDGES, Histogram, Meter
from wmrt.service.metrics import CONTENT_TYPE, SLICE, Metrics

TOKEN, READER = "client-" + "t" * 16, "metrics-" + "m" * 16


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = {f.name: f for f in text_string_to_metric_families(text)}
        self.samples = [s for family in self.families.values() for s in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The one sample of that name with these labels, and perhaps others."""
        found = [
            s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()
        ]
        assert len(found) == 1, (name, labels, found)
        return float(found[0])

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """What is not 0, by one label."""
        return {
            s.labels[label]: s.value
            for s in self.samples
            if s.name == name and labels.items() <= s.labels.items() and s.value
        }


def scrape(running: Running, token: str | None = None) -> Scrape:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{running.tcp}/metrics", headers=headers, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == CONTENT_TYPE
    return Scrape(answer.text)


def test_a_scripted_stream_is_counted_exactly(tmp_path: Path) -> None:
    pauses: list[float] = []
    seat = CanarySeat(lambda: pauses.pop() if pauses else 0.0)
    with service(tmp_path, [seat], tcp=True, deadline=0.9, clock="step") as running:
        raw = running.raw()
        raw.open("r1")
        for sequence in range(4):
            raw.acted(sequence)
        pauses += [1.0, 1.0]
        assert raw.acted(4).late and raw.acted(5).late  # two deadline misses
        assert raw.acted(6, state=state(math.nan)).tripped == (0,)  # a trip, which opens
        for sequence in range(7, 9):
            assert raw.acted(sequence).source == "fallback"  # until enough good ones have come
        assert raw.refused(8) == "duplicate"
        assert raw.refused(3) == "stale"
        assert raw.refused(3) == "stale"
        assert raw.refused(9, session=raw.seen(9).session ^ 1) == "unknown_session"
        assert raw.refused(9, epoch=7) == "malformed"
        raw.say(b"garbage")
        assert raw.hear()["error"]["name"] == "malformed"
        assert running.raw().open("r2")["error"]["name"] == "too_many_robots"
        assert running.raw().open("r1")["error"]["name"] == "held"
        assert httpx.get(f"{running.tcp}/nowhere", trust_env=False).status_code == 404
        got = scrape(running)

    assert got.by("wmrt_steps_total", "source", robot="r1") == {"policy": 4, "fallback": 5}
    assert got.value("wmrt_deadline_misses_total", robot="r1") == 2
    assert got.by("wmrt_breaker_trips_total", "level", robot="r1") == {"validity": 1}
    assert got.by("wmrt_breakers_state", "state", robot="r1") == {"open": 1}
    assert got.by("wmrt_observations_total", "outcome", robot="r1") == {
        "answered": 9, "duplicate": 1, "stale": 2, "unknown_session": 1, "malformed": 1,
    }  # fmt: skip
    assert got.by("wmrt_refusals_total", "reason") == {
        "duplicate": 1, "stale": 2, "unknown_session": 1, "malformed": 2, "too_many_robots": 1,
        "held": 1, "not_found": 1,
    }  # fmt: skip
    assert got.by("wmrt_sessions_opened_total", "memory") == {"fresh": 1}
    assert got.value("wmrt_robots") == got.value("wmrt_robots_limit") == 1
    assert got.value("wmrt_robot_connected", robot="r1") == 1
    assert (got.value("wmrt_ready"), got.value("wmrt_alive")) == (1, 1)
    _times_are_told(got)


def _times_are_told(got: Scrape) -> None:
    """Nine steps, eight of which asked the policy, two of which missed a deadline of 0.9 s."""
    edges = got.by("wmrt_step_duration_seconds_bucket", "le", robot="r1")
    assert edges["+Inf"] == got.value("wmrt_step_duration_seconds_count", robot="r1") == 9
    assert {float(edge) for edge in edges} <= {*EDGES, 0.9, math.inf}
    assert edges["0.9"] == 7  # the deadline is an edge, and exactly the two are beyond it
    assert 2.0 <= got.value("wmrt_step_duration_seconds_sum", robot="r1")
    counts = {
        part: got.value(f"wmrt_step_{part}_seconds_count")
        for part in ("queue", "policy", "breakers", "reply")
    }
    assert counts == {"queue": 9, "policy": 8, "breakers": 9, "reply": 9}
    parts = sum(got.value(f"wmrt_step_{part}_seconds_sum") for part in counts)
    whole = got.value("wmrt_step_duration_seconds_sum", robot="r1")
    assert parts == pytest.approx(whole, rel=0.01)
    assert (got.value("wmrt_deadline_seconds"), got.value("wmrt_period_seconds")) == (0.9, 0.01)


def test_superseded_and_discarded_observations_are_counted(tmp_path: Path) -> None:
    go = threading.Event()
    seat = CanarySeat(lambda: go.wait(30.0) * 0.0)
    go.set()
    with service(tmp_path, [seat], tcp=True, clock="step") as running:
        raw = running.raw()
        raw.open()
        raw.acted(0)
        go.clear()
        place = running.host.registry.places["r1"]
        for sequence in range(1, 5):  # one in work, three for the mailbox of one
            raw.say(raw.packed(sequence))
            until(lambda: place.session.sequence == sequence)  # noqa: B023
            until(lambda: place.desk.policy.running() > 0)
        raw.say({"kind": "reset", "version": 1, "robot": "r1"})
        until(lambda: place.session.epoch == 1)
        go.set()
        kinds = sorted(raw.hear()["kind"] for _ in range(5))
        assert kinds == ["opened", *["refused"] * 4]
        got = scrape(running)
    outcomes = got.by("wmrt_observations_total", "outcome", robot="r1")
    assert outcomes == {"answered": 1, "superseded": 2, "discarded": 2}
    refusals = got.by("wmrt_refusals_total", "reason")
    assert refusals == {"superseded": 2, "discarded": 2}
    assert got.value("wmrt_step_policy_seconds_count") == 2  # the one that was discarded was made


def test_memories_and_their_disk_are_counted(tmp_path: Path) -> None:
    changes = {"tcp": True, "snapshots": tmp_path / "kept", "snapshot_every": 0.0}
    with service(tmp_path, **changes) as running:
        raw = running.raw()
        own = raw.open("r1")
        raw.acted(0)
    with service(tmp_path, [CanarySeat(), CanarySeat()], **changes) as running:
        assert running.raw().open("r1", session=own["session"])["memory"] == "restored"
        store = running.host.registry.store
        assert store is not None
        store.path("r2").write_bytes(b"no snapshot")
        assert running.raw().open("r2")["memory"] == "fresh"
        store.folder = tmp_path / "gone"
        kept = running.host.registry.keep(running.host.registry.places["r1"])
        assert not asyncio.run_coroutine_threadsafe(kept, running.host.outbox.loop).result(30.0)
        store.folder = tmp_path / "kept"
        until(lambda: running.host.meter.lag.count)
        got = scrape(running)
        assert got.by("wmrt_sessions_opened_total", "memory") == {"restored": 1, "fresh": 1}
        assert got.value("wmrt_sessions_not_restored_total") == 1
        assert got.value("wmrt_snapshot_failures_total") == 1
        assert got.value("wmrt_snapshot_failures_in_a_row") == 1
        assert got.value("wmrt_snapshots_written_total") == 0
        assert got.by("wmrt_breakers_state", "state", robot="r2") == {"latched": 1}
        assert (got.value("wmrt_ready"), got.value("wmrt_alive")) == (0, 1)
        assert got.value("wmrt_event_loop_lag_seconds_count") >= 1
    assert store.written == 2  # both, on stop


def test_every_value_of_a_label_is_there_from_the_start(tmp_path: Path) -> None:
    with service(tmp_path, tcp=True) as running:
        running.raw().open("r1")
        got = scrape(running)
    reasons = {s.labels["reason"] for s in got.samples if s.name == "wmrt_refusals_total"}
    assert reasons == set(REFUSALS)
    states = {s.labels["state"] for s in got.samples if s.name == "wmrt_breakers_state"}
    assert states == {"closed", "degraded", "open", "half_open", "latched"}
    assert got.value("wmrt_deadline_misses_total", robot="r1") == 0
    names = {
        "process_cpu_seconds",
        "process_resident_memory_bytes",
        "python_info",
        "wmrt_build_info",
    }
    assert names <= set(got.families)
    for family in got.families.values():
        assert family.documentation, family.name
        if family.name.startswith("wmrt_") and family.type == "histogram":
            assert family.name.endswith("_seconds")


def test_a_robot_that_leaves_takes_its_series_along(tmp_path: Path) -> None:
    with service(tmp_path, tcp=True, idle=0.0, hold=0.05) as running:
        for number in range(20):
            raw = running.raw()
            until(lambda: raw.open(f"r{number}")["kind"] == "opened")  # noqa: B023
            raw.acted(0)
            raw.channel.close()
            until(lambda: not running.host.registry.places[f"r{number}"].session.holder)  # noqa: B023
        got = scrape(running)
    robots = {s.labels["robot"] for s in got.samples if "robot" in s.labels}
    assert robots == {"r19"}
    assert got.by("wmrt_sessions_opened_total", "memory") == {"fresh": 20}
    assert got.value("wmrt_step_queue_seconds_count") == 20  # of the process: none is lost


def test_a_name_never_becomes_a_label_unless_it_may_be_a_robot_s(tmp_path: Path) -> None:
    with service(tmp_path, tcp=True) as running:
        for name in ('r"1', "r\n1", "r1{", "x" * 65, "é"):
            assert running.raw().open(name)["error"]["name"] == "malformed"
        running.raw().open("r-1.a_b")
        got = scrape(running)
    assert {s.labels["robot"] for s in got.samples if "robot" in s.labels} == {"r-1.a_b"}


def test_who_may_read(tmp_path: Path) -> None:
    with service(tmp_path, tcp=True, token=TOKEN, metrics_token=READER) as running:
        url = running.tcp

        def status(path: str, token: str | None) -> int:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            return httpx.get(url + path, headers=headers, trust_env=False).status_code

        assert [status("/metrics", token) for token in (None, "x" * 20)] == [401, 401]
        assert [status("/metrics", token) for token in (TOKEN, READER)] == [200, 200]
        # What reads metrics reads nothing else, and drives no robot.
        for path in ("/v1/info", "/v1/schema", "/openapi.json", "/v1/breakers"):
            assert status(path, READER) == 401
        body = {"robot": "r1"}
        reset = httpx.post(
            url + "/v1/reset", json=body, headers={"Authorization": f"Bearer {READER}"},
            trust_env=False,
        )  # fmt: skip
        assert reset.status_code == 401
        got = scrape(running, READER)
        assert got.by("wmrt_refusals_total", "reason") == {"unauthorized": 7}


def test_what_is_written_in_slices_is_what_the_library_writes(tmp_path: Path) -> None:
    with service(tmp_path, [CanarySeat() for _ in range(6)], tcp=True) as running:
        for number in range(6):
            running.raw().open(f"r{number}")
        metrics = Metrics(running.host)
        steps = next(
            f for f in metrics.registry.collect() if f.name == "wmrt_step_duration_seconds"
        )
        assert len(steps.samples) > SLICE
        ours = asyncio.run(metrics.exposition()).decode()
        theirs = prometheus_client.generate_latest(metrics.registry).decode()

    def lasting(text: str) -> list[str]:
        return [
            line
            for line in text.splitlines()
            if not line.startswith(("process_", "python_gc", "wmrt_event"))
        ]

    assert lasting(ours) == lasting(theirs)


def test_a_histogram_s_edges_belong_to_the_bucket_below() -> None:
    histogram = Histogram((0.001, 0.002))
    for ns in (-5, 0, 1_000_000, 1_000_001, 2_000_000, 2_000_001, 10**12):
        histogram.observe(ns)
    assert list(histogram.counts) == [3, 2, 2] and histogram.count == 7
    assert histogram.total_ns == sum((0, 0, 1_000_000, 1_000_001, 2_000_000, 2_000_001, 10**12))


@pytest.mark.parametrize("deadline", [0.0123, 0.1, 5.0])
def test_the_deadline_is_an_edge(deadline: float) -> None:
    edges = Meter(deadline).edges
    assert deadline in edges and set(EDGES) <= set(edges) and list(edges) == sorted(set(edges))


def test_counting_a_step_costs_less_than_the_library_s_own_counters() -> None:
    """A ratio: this machine may be busy. Both do the same eight things."""
    answer = Acted(
        *("r1", 1, 0, 1, 1, (0.1, 0.2), "policy", "closed", (), False, 0, None, 41_000, 612_000),
        655_000,
    )
    meter = Meter(0.1)
    robot = meter.robot()
    registry = prometheus_client.CollectorRegistry()
    theirs = [
        prometheus_client.Histogram(f"h{i}", "x", ["robot"], buckets=EDGES, registry=registry)
        for i in range(5)
    ]
    source = prometheus_client.Counter("s", "x", ["robot", "source"], registry=registry)

    def own() -> None:
        meter.acted(answer, time.perf_counter_ns() - 700_000, robot)

    def library() -> None:
        for histogram in theirs:
            histogram.labels(answer.robot).observe(answer.act_ns * 1e-9)
        source.labels(answer.robot, answer.source).inc()

    took = {
        f.__name__: min(repeat(f, timer=time.thread_time, number=500, repeat=30)) / 500
        for f in (own, library)
    }
    assert took["own"] * 1.5 < took["library"], took  # 5 times where it was measured
    assert took["own"] < 20e-6, took  # 1.2 us


def test_two_hosts_do_not_mix(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    with service(tmp_path / "a", tcp=True) as one, service(tmp_path / "b", tcp=True) as two:
        raw = one.raw()
        raw.open("r1")
        raw.acted(0)
        assert scrape(one).value("wmrt_step_queue_seconds_count") == 1
        assert scrape(two).value("wmrt_step_queue_seconds_count") == 0


def test_listeners_hear_every_refusal_once(tmp_path: Path) -> None:
    heard: list[Any] = []

    def fails(_: Any) -> None:
        raise RuntimeError("a display")

    with service(tmp_path, tcp=True) as running:
        running.host.refused += [fails, heard.append]
        raw = running.raw()
        raw.open("r1")
        raw.acted(0)
        raw.refused(0)
        until(lambda: heard)
        httpx.post(f"{running.tcp}/v1/reset", json={"robot": "r2"}, trust_env=False)
        httpx.post(f"{running.tcp}/v1/act", json={}, trust_env=False)
        assert [refusal.name for refusal in heard] == ["duplicate", "too_many_robots", "malformed"]
