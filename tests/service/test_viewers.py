"""`GET /v1/live`: who may look, what comes, and that whoever looks costs nothing that grows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import state
from wmrt.service import records, viewers
from wmrt.service.live import Live
from wmrt.service.refusals import Refusal
from wmrt.service.viewers import VIEWERS, Viewers

TOKEN, OPERATOR = "client-" + "t" * 16, "operator-" + "o" * 16
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with service(tmp_path, tcp=True, token=TOKEN, operator_token=OPERATOR) as one:
        yield one


def counter(running: Running) -> Viewers:
    """The route's application."""
    routes = running.server.gate.app.app.router.routes  # type: ignore[attr-defined]
    found: Viewers = next(r.app for r in routes if getattr(r, "path", "") == "/v1/live")
    return found


@contextlib.contextmanager
def looking(running: Running, robot: str | None = None) -> Iterator[Iterator[dict[str, Any]]]:
    """Messages of one viewer, as they come."""
    query = {} if robot is None else {"robot": robot}
    with (
        httpx.Client(base_url=running.tcp, headers=HEADERS, trust_env=False) as http,
        http.stream("GET", "/v1/live", params=query) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        lines = answer.iter_lines()
        yield (json.loads(line.removeprefix("data: ")) for line in lines if line)


def frame(messages: Iterator[dict[str, Any]], *keys: str) -> dict[str, Any]:
    """The next one that has all of ``keys``."""
    for message in messages:
        if message["kind"] == "frame" and all(message.get(key) for key in keys):
            return message
    raise AssertionError("the stream has ended")


def test_a_viewer_sees_the_robot_at_work(running: Running) -> None:
    with running.raw(TOKEN) as robot, looking(running) as messages:
        hello = next(messages)
        assert hello["kind"] == "hello" and hello["operator_token"] is True
        assert hello["columns"] == ["canary", "gap", "pose[0]", "pose[1]", "lane", "wet"]
        assert hello["actions"][0]["name"] == "a" and hello["info"]["period"] == 0.01
        empty = next(messages)
        assert (empty["robot"], empty["here"], empty["robots"]) == (None, False, {})
        robot.open("r1")
        robot.acted(0, state=state(0.5))
        first = frame(messages, "last")
        assert first["robot"] == "r1" and first["here"] and first["robots"]["r1"]["age_ms"] >= 0
        assert first["last"]["action"][0] == 0.5 and first["last"]["source"] == "policy"
        assert first["state"]["values"][0] == 0.5 and first["state"]["flags"] == {
            "pose[1]": ["empty"]
        }
        assert first["latency"]["n"] == first["steps"] == 1
        assert sum(first["latency"]["histogram"]["counts"]) == 1
        assert [slot["i"] for slot in first["slots"]] == [0]
        robot.acted(1, state=state(None))  # type: ignore[arg-type]
        tripped = frame(messages, "last")
        assert tripped["last"]["tripped"] == [0] and tripped["last"]["source"] == "fallback"
        assert tripped["robots"]["r1"]["breakers"] == "open"
        causes = [event["cause"] for event in tripped["events"]]
        while "input" not in causes:  # they come with a later frame
            causes += [event["cause"] for event in frame(messages, "events")["events"]]


def test_frames_hold_what_is_new(running: Running) -> None:
    with running.raw(TOKEN) as robot:
        robot.open("r1")
        for n in range(3):
            robot.acted(n, state=state(None))  # type: ignore[arg-type]
        assert robot.refused(0) == "stale"
        with looking(running, "r1") as messages:
            first = frame(messages, "last")
            events = first["events"] or frame(messages, "events")["events"]
            serials = [event["n"] for event in events]
            assert serials == list(range(len(serials))) and len(serials) >= 3
            assert [(one["robot"], one["name"]) for one in first["refusals"]] == [("r1", "stale")]
            idle = next(messages)
            assert not idle["events"] and not idle["refusals"] and "slots" not in idle
            time.sleep(0.06)  # another slot
            robot.acted(5)
            news = frame(messages, "last")
            assert news["steps"] == 4 and not news["refusals"]
            assert news["slots"][-1]["i"] == first["slots"][-1]["i"] + 1
            assert len(news["slots"]) == 2  # the last one may have grown


def test_a_new_viewer_is_brought_up_to_date_piece_by_piece(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SLOT", 0.0)  # a slot for each step
    with running.raw(TOKEN) as robot:
        robot.open("r1")
        for n in range(records.TOLD + 50):
            robot.acted(n)
        with looking(running) as messages:
            first = frame(messages, "slots")
            assert first["more"] and len(first["slots"]) == records.TOLD and "last" not in first
            second = frame(messages, "slots")
            assert not second["more"] and second["last"]["step"] == records.TOLD + 50
            indices = [slot["i"] for slot in first["slots"] + second["slots"]]
            assert indices == list(range(records.TOLD + 50))


def test_what_operators_do_is_seen(running: Running) -> None:
    with running.raw(TOKEN) as robot:
        robot.open("r1")
        robot.acted(0)
        http = httpx.Client(base_url=running.tcp, trust_env=False, headers=HEADERS)
        with looking(running) as messages, http:
            assert frame(messages, "last")["robots"]["r1"]["stop_pressed"] is False
            assert http.post("/v1/breakers/estop", json={"robot": "r1"}).json()["stop_pressed"]
            pressed = frame(messages)
            assert pressed["robots"]["r1"]["stop_pressed"] is True
            operator = {"Authorization": f"Bearer {OPERATOR}"}
            person = {"robot": "r1", "operator": "A. Person"}
            http.post("/v1/breakers/release", json=person, headers=operator)
            robot.acted(1)
            latched = frame(messages, "last")
            assert latched["robots"]["r1"]["stop_pressed"] is False
            assert latched["robots"]["r1"]["breakers"] == "latched"
            assert any("latched" in reason for reason in latched["reasons"])


def test_a_robot_that_is_gone_is_said_to_be(running: Running) -> None:
    with running.raw(TOKEN) as robot:
        robot.open("r1")
        robot.acted(0)
        with looking(running, "r1") as messages:
            assert frame(messages, "last")["here"]
            place = running.host.registry.places.pop("r1")
            gone = next(messages)
            assert gone["robot"] == "r1" and not gone["here"] and gone["robots"] == {}
            running.host.registry.places["r1"] = place
        with looking(running, "r9") as messages:
            next(messages)
            assert next(messages)["here"] is False


def test_who_may_look(running: Running) -> None:
    with httpx.Client(base_url=running.tcp, trust_env=False) as http:
        for headers in ({}, {"Authorization": "Bearer x"}):
            with http.stream("GET", "/v1/live", headers=headers) as answer:
                assert answer.status_code == 401
        wrong = http.get("/v1/live?robot=../x", headers=HEADERS)
        assert wrong.status_code == 400 and wrong.json()["error"]["name"] == "malformed"
        assert http.head("/v1/live", headers=HEADERS).status_code == 200
        assert http.post("/v1/live", headers=HEADERS).status_code == 405
    assert counter(running).count == 0


def test_so_many_may_look_and_leave(running: Running) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(VIEWERS):
            next(stack.enter_context(looking(running)))
        with httpx.Client(base_url=running.tcp, headers=HEADERS, trust_env=False) as http:
            full = http.get("/v1/live")
            assert full.status_code == 429
            assert full.json()["error"]["name"] == "too_many_connections"
        assert counter(running).count == VIEWERS
    until(lambda: counter(running).count == 0)
    with looking(running) as messages:
        assert next(messages)["kind"] == "hello"


def test_viewers_that_come_together_are_counted_before_they_are_answered(
    running: Running,
) -> None:
    host, scope = running.host, {"query_string": b"", "method": "HEAD"}

    async def come() -> list[Any]:
        own, go = Viewers(host, counter(running)._live), asyncio.Event()

        async def send(message: Any) -> None:
            await go.wait()

        async def receive() -> Any:
            await asyncio.sleep(60.0)

        tasks = [asyncio.create_task(own(scope, receive, send)) for _ in range(VIEWERS + 1)]
        await asyncio.sleep(0)
        go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert own.count == 0
        return found

    found = asyncio.run_coroutine_threadsafe(come(), host.outbox.loop).result(20.0)
    assert found[:-1] == [None] * VIEWERS
    assert isinstance(found[-1], Refusal) and found[-1].name == "too_many_connections"


def test_one_that_does_not_read_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewers, "SEND_SECONDS", 1.0)
    monkeypatch.setattr(viewers, "FRAME", 0.002)
    # More than sockets hold on the way, soon.
    monkeypatch.setattr(Live, "frame", lambda *_: {"kind": "frame", "much": 300_000 * "x"})
    with service(tmp_path, [CanarySeat()], tcp=True) as running:
        host, port = running.tcp.removeprefix("http://").split(":")
        with socket.socket() as slow, running.raw() as robot:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((host, int(port)))
            slow.sendall(b"GET /v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            until(lambda: counter(running).count == 1)
            robot.open("r1")
            sequence, taken = 0, 0.0
            end = time.monotonic() + 60.0
            while counter(running).count:  # until it is cut off
                began = time.monotonic()
                robot.acted(sequence, state=state(0.25))
                taken = max(taken, time.monotonic() - began)
                sequence += 1
                assert began < end, "it was never cut off"
        assert sequence > 10 and taken < 5.0


def test_a_stop_ends_the_streams(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with service(tmp_path, tcp=True, token=TOKEN) as running:
            messages = stack.enter_context(looking(running))
            assert next(messages)["kind"] == "hello"
            began = time.monotonic()
        assert time.monotonic() - began < 4.5  # not the 5 s that uvicorn waits for connections
        assert list(messages)[-1] == {"kind": "stopping"}


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_what_a_slow_viewer_gets_was_made_lately(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, http: str
) -> None:
    made = [0]
    monkeypatch.setattr(viewers, "FRAME", 0.001)
    monkeypatch.setattr(Live, "frame", lambda *_: {"kind": "frame", "n": tally(), "x": 2000 * "x"})

    def tally() -> int:
        made[0] += 1
        return made[0]

    options: dict[str, Any] = {"tcp": True, "http": http}
    with service(tmp_path, [CanarySeat()], **options) as running, socket.socket() as slow:
        host, port = running.tcp.removeprefix("http://").split(":")
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        slow.sendall(b"GET /v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        until(lambda: made[0] > 5)
        until(lambda: standing(made))
        assert 2000 * made[0] < 4 * viewers.UNSENT, made


def standing(made: list[int]) -> bool:
    """Whether no frame is made for a while."""
    before = made[0]
    time.sleep(0.3)
    return made[0] == before
