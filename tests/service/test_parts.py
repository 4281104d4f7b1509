"""Settings, clocks, buckets, the worker."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.service.doubles import CanarySeat
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.service.buckets import KEYS, Buckets
from wmrt.service.clocks import WINDOW_NS, ClockMap
from wmrt.service.crew import Crew, load_crew
from wmrt.service.placement import default_cpu, place, placeable
from wmrt.service.settings import ServeSettings, read_settings, unknown_names
from wmrt.service.worker import Worker

TOKEN = "s3cret" * 5


def test_settings_come_from_arguments_then_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WMRT_SERVE_ROBOTS", "4")
    monkeypatch.setenv("WMRT_SERVE_PERIOD", "0.02")
    monkeypatch.setenv("WMRT_SERVE_TOKEN", TOKEN)
    settings = read_settings(robots=2, period=None)
    assert (settings.robots, settings.period, settings.host) == (2, 0.02, "127.0.0.1")
    assert settings.token is not None and settings.token.get_secret_value() == TOKEN
    assert TOKEN not in repr(settings)


def test_a_misspelled_setting_is_noticed() -> None:
    names = ["WMRT_SERVE_TOKEN", "WMRT_SERVE_TOKN", "WMRT_TOKEN", "wmrt_serve_robots", "PATH"]
    assert unknown_names(names) == ["WMRT_SERVE_TOKN"]


@pytest.mark.parametrize(
    "text", ["a.example,b.example", "a.example b.example", " a.example, b.example,"]
)
def test_names_come_from_the_environment_as_one_text(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("WMRT_SERVE_NAMES", text)
    assert read_settings().names == ("a.example", "b.example")
    assert read_settings(names=("c.example",)).names == ("c.example",)


def test_names_are_kept_as_a_request_s_host_is_compared() -> None:
    given = (" Robot-7.Local ", "10.0.0.7", "[FE80::7]", "fe80::8", "_a_", "xn--bcher-kva.example")
    names = ("robot-7.local", "10.0.0.7", "fe80::7", "fe80::8", "_a_", "xn--bcher-kva.example")
    assert read_settings(names=given).names == names


@pytest.mark.parametrize(
    "name", ["a b", "", "https://a.example", "a.example:8420", "*.example", "bücher.example", "-a"]
)
def test_what_no_host_is_called_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"names: .* is no host name"):
        read_settings(names=("a.example", name))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"robots": 17}, r"robots: .*less than or equal to 16.*17"),
        ({"robots": "many"}, "robots: .*integer"),
        ({"period": 0.0}, "period: .*greater than 0"),
        ({"period": float("nan")}, "period: .*finite"),
        ({"host": "0.0.0.0"}, "host 0.0.0.0 is reached by other machines; pass --open"),
        ({"host": "0.0.0.0", "open": True}, "needs a token"),
        ({"open": True}, "needs a token: --token-file"),
        ({"open": True, "socket": "s", "operator_token": TOKEN}, "needs a token: --token-file"),
        ({"rate": 0.9}, "rate: .*greater than or equal to 1.*0.9"),
        ({"snapshot_every": 5.0}, "snapshot_every without snapshots: .*--snapshots"),
        ({"max_age": 0.5, "clock": "step"}, "max_age with clock step: .*leave one out"),
        ({"deadline": 2.5, "stuck_after": 2.0}, "deadline of 2.5 s, .* after 2 s: let stuck_after"),
        ({"period": 20.0}, "deadline of 20 s, .* after 10 s: let stuck_after"),
        ({"token": "short"}, "token: a token has at least 16"),
        ({"token": "with spaces in between it"}, "token: a token has at least 16"),
        ({"token": TOKEN, "operator_token": TOKEN}, "an operator has one of its own"),
        ({"token": TOKEN, "metrics_token": TOKEN}, "whoever reads metrics has one of its own"),
        (
            {"operator_token": TOKEN, "metrics_token": TOKEN, "token": "other" * 4},
            "operator_token and m",
        ),
        ({"metrics_token": TOKEN}, "metrics_token without token"),
        ({"stuck_after": 0.0}, "stuck_after: .*greater than 0"),
        ({"tls_cert": "x"}, "go together"),
        ({"tls_cert": "x", "tls_key": "y", "socket": "z"}, "TLS is for TCP"),
        ({"on_second_client": "fight"}, "on_second_client: .*refuse.*takeover"),
        ({"nonsense": 1}, "nonsense"),
        ({"port": 70_000}, "port: .*65535"),
    ],
)
def test_settings_that_cannot_be_meant_are_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read_settings(**given)
    assert "\n" not in str(caught.value) and "short" not in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"OPEN": "true"}, "needs a token"),
        ({"RATE": "0.4"}, "rate: .*greater than or equal to 1"),
        ({"SNAPSHOT_EVERY": "5"}, "snapshot_every without snapshots"),
        ({"MAX_AGE": "0.5", "CLOCK": "step"}, "max_age with clock step"),
        ({"STUCK_AFTER": "0.5", "DEADLINE": "0.6"}, "deadline of 0.6 s"),
    ],
)
def test_what_cannot_work_is_refused_from_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], said: str
) -> None:
    for key, value in given.items():
        monkeypatch.setenv(f"WMRT_SERVE_{key}", value)
    with pytest.raises(UsageError, match=said):
        read_settings()


def test_what_works_is_taken(tmp_path: Path) -> None:
    assert read_settings(snapshot_every=0.0, snapshots=tmp_path).snapshot_every == 0.0
    assert read_settings(max_age=0.5).max_age == 0.5
    assert read_settings(deadline=2.0, stuck_after=2.0, period=3.0).deadline == 2.0
    assert read_settings(rate=1.0).rate == 1.0


def test_an_open_host_with_a_token_is_meant() -> None:
    assert read_settings(host="0.0.0.0", open=True, token=TOKEN).tcp_port == 8420
    assert read_settings(host="0.0.0.0", socket=Path("s")).tcp_port is None


def test_a_clock_elsewhere_is_read_to_within_the_fastest_message(seed: int) -> None:
    rng = random.Random(seed)
    shift, drift, clocks = rng.randrange(-(10**15), 10**15), 1 + 40e-6, ClockMap()
    received, last = 10**12, 0
    for i in range(2_000):
        received += 20_000_000
        waited = rng.choice([0, 0, 1, 30]) * 1_000_000  # in a queue before it was sent
        under_way = 200_000 + (0 if i % 7 == 0 else rng.randrange(5_000_000))
        sent = round((received - under_way) * drift) + shift
        captured = round((received - under_way - waited) * drift) + shift
        mapped = clocks.map(captured, sent, received)
        true = received - under_way - waited
        assert last < mapped <= received
        if i > 50:  # 40 ppm over two windows are 2.4 ms; being never late costs the smallest delay
            assert -2_600_000 < mapped - true < 400_000 or mapped == last + 1, i
        last = mapped


def test_what_waited_is_old(seed: int) -> None:
    clocks = ClockMap()
    assert clocks.map(1_000, 2_000, 10**9) == 10**9 - 1_000
    stuck = clocks.map(1_000 + 10**6, 2_000 + 10**6, 10**9 + 5 * 10**9)  # 5 s in the network
    assert 10**9 + 5 * 10**9 - stuck > 4_900_000_000


def test_a_clock_that_changes_is_followed_after_two_windows() -> None:
    clocks, at = ClockMap(), 10**12
    clocks.map(at, at, at)
    for _ in range(2):  # the sender's clock went back by a second: nothing is young until then
        at += WINDOW_NS + 1
        clocks.map(at - 10**9, at - 10**9, at)
    at += WINDOW_NS + 1
    assert at - clocks.map(at - 10**9, at - 10**9, at) < 10


def test_a_bucket_fills_at_its_rate() -> None:
    now = [0.0]
    buckets = Buckets(10.0, 3.0, lambda: now[0])
    assert [buckets.take("a") for _ in range(4)] == [True, True, True, False]
    assert buckets.take("b")
    now[0] += 0.1
    assert buckets.take("a") and not buckets.take("a")
    now[0] += 1e6
    assert [buckets.take("a") for _ in range(4)] == [True, True, True, False]


def test_buckets_forget_who_was_not_heard_of() -> None:
    buckets = Buckets(1.0, 1.0, lambda: 0.0)
    assert buckets.take("first") and not buckets.take("first")
    for i in range(KEYS):
        buckets.take(str(i))
    assert buckets.take("first")
    assert len(buckets._buckets) == KEYS


def test_a_worker_runs_one_thing_after_the_other() -> None:
    worker = Worker("test", -1)
    order: list[int] = []
    for i in range(10):
        worker.put(lambda i=i: order.append(i))  # type: ignore[misc]
    thread = worker.call(threading.get_ident).result(10.0)
    assert order == list(range(10)) and thread != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0).result(10.0)
    assert worker.close()
    with pytest.raises(UsageError, match="stopping"):
        worker.call(list).result(1.0)


@pytest.mark.parametrize("cpu", [99_999, max(os.sched_getaffinity(0)) + 1])
def test_a_processor_that_was_asked_for_is_had_or_refused(cpu: int) -> None:
    usable = sorted(os.sched_getaffinity(0))
    with pytest.raises(UnsupportedError, match=rf"cpu {cpu}: this process may use {usable[0]}\b"):
        placeable(cpu, 0)
    with pytest.raises(UnsupportedError, match=f"cpu {cpu}"):
        Crew([CanarySeat()], ServeSettings(cpu=cpu))
    with pytest.raises(UnsupportedError, match=f"cpu {cpu}"):
        load_crew(ServeSettings(cpu=cpu, model="no such model"))  # before anything is read
    assert placeable(usable[-1], 0) == usable[-1] and placeable(-1, 0) == -1
    assert placeable(None, 0) == default_cpu()


@pytest.mark.parametrize("priority", [1, 40, 99])
def test_a_priority_that_was_asked_for_is_had_or_refused(
    priority: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    limit = 98  # as LimitRTPRIO has it

    def schedule(who: int, policy: int, parameter: Any) -> None:
        asked.append(parameter.sched_priority)
        if parameter.sched_priority > limit:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", schedule)
    if priority < limit:
        assert placeable(-1, priority) == -1
        assert asked == [priority, priority + 1]  # the deadline's alarm runs above it
        limit = priority
    with pytest.raises(UnsupportedError, match=rf"priority {priority}: .*permitted.*LimitRTPRIO"):
        placeable(-1, priority)
    assert placeable(-1, 0) == -1


def test_ranges_of_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 5, 7, 8})
    with pytest.raises(UnsupportedError, match="this process may use 0-2, 5, 7-8; -1 is any"):
        placeable(3, 0)


def test_a_place_that_cannot_be_had_is_told() -> None:
    told: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: told.append(place(100_000, 0)))
    thread.start()
    thread.join()
    assert told[0]["cpu"] is None and "cpu 100000" in told[0]["reasons"][0]
    cpu = default_cpu()
    if cpu is not None:
        thread = threading.Thread(target=lambda: told.append(place(cpu, 0)))
        thread.start()
        thread.join()
        assert told[1] == {"cpu": cpu, "priority": None, "reasons": []}
