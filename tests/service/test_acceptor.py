"""Connections are accepted a few at a time, and refused before they are any."""

from __future__ import annotations

import itertools
import json
import random
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.service.doubles import Running, service, until
from tests.service.test_protocols import dialled, live
from tests.service.test_server import http_status
from tools.wire import TEXT, dial, frame, handshake, heard, request
from wmrt.client import connect
from wmrt.core.errors import ServiceError
from wmrt.core.wire import ROBOT_HEADER
from wmrt.service import acceptor
from wmrt.service.acceptor import AT_ONCE
from wmrt.service.admission import opening
from wmrt.service.protocols import Http

TOKEN = "a-token-of-many-characters"


def named(robot: str, *headers: str, path: str = "/v1/stream") -> bytes:
    return handshake(path, f"{ROBOT_HEADER}: {robot}", *headers)


def said(running: Running, data: bytes, seconds: float = 10.0) -> str:
    """What comes back on a connection of its own."""
    with dialled(running) as (own,):
        own.sendall(data)
        return heard(own, seconds)


def error(text: str) -> tuple[str, str]:
    """Status and name of a refusal over HTTP."""
    head, _, body = text.partition("\r\n\r\n")
    assert f"content-length: {len(body)}" in head.lower(), text
    return head.split()[1], json.loads(body)["error"]["name"]


@pytest.fixture
def protocols_made(monkeypatch: pytest.MonkeyPatch) -> list[Http]:
    """Connections that were one."""
    made: list[Http] = []
    before = Http.connection_made

    def connection_made(self: Http, transport: Any) -> None:
        made.append(self)
        before(self, transport)

    monkeypatch.setattr(Http, "connection_made", connection_made)
    return made


def test_a_client_too_many_is_refused_before_it_is_a_connection(
    tmp_path: Path, protocols_made: list[Http]
) -> None:
    with service(tmp_path) as running:
        raw = running.raw()
        raw.open("r1")
        before = len(protocols_made)
        heard_of: list[Any] = []
        running.host.refused.append(heard_of.append)
        told = said(running, named("r2"))
        assert error(told) == ("429", "too_many_robots")
        assert "1 robot, and all places are taken" in told and "--robots makes more" in told
        with pytest.raises(ServiceError, match="1 robot, and all places") as caught:
            connect(running.address, "r2")
        assert caught.value.name == "too_many_robots"
        assert len(protocols_made) == before
        assert running.host.counts["too_many_robots"] == 2
        assert [refusal.robot for refusal in heard_of] == ["r2", "r2"]
        assert raw.acted(0).sequence == 0


def test_a_refusal_is_heard_to_its_end(tmp_path: Path) -> None:
    """What is left unread as a connection closes makes its peer's last reads fail."""
    with service(tmp_path, tcp=True) as running:
        running.raw().open("r1")
        port = urlsplit(running.tcp).port
        assert port is not None
        tcp = dial(port)
        unix = socket.socket(socket.AF_UNIX)
        unix.connect(running.address.removeprefix("unix:"))
        for own in (tcp, unix):
            with own:
                own.settimeout(10.0)
                own.sendall(named("r2"))
                until(lambda: running.host.counts["too_many_robots"] > 0)
                parts = [own.recv(65536)]
                while parts[-1]:
                    parts.append(own.recv(65536))
                assert error(b"".join(parts).decode()) == ("429", "too_many_robots")


def test_a_place_that_is_given_away_is_no_reason(tmp_path: Path) -> None:
    with service(tmp_path, hold=0.05, idle=0.0) as running:
        with connect(running.address, "r1"):
            assert error(said(running, named("r2"))) == ("429", "too_many_robots")
        until(lambda: running.host.registry.no_room("r2") is None)
        with connect(running.address, "r2") as second:
            assert second.state == "connected"


def test_whom_a_place_belongs_to_gets_in(tmp_path: Path, protocols_made: list[Http]) -> None:
    with service(tmp_path) as running:
        first = running.raw()
        first.open("r1")
        before = len(protocols_made)
        with pytest.raises(ServiceError) as caught:  # a second client, by another rule
            connect(running.address, "r1")
        assert caught.value.name == "held"
        own = first.opened
        first.channel.drop()
        again = running.raw()
        assert again.open("r1", session=own["session"])["resumed"]
        assert len(protocols_made) == before + 2


@pytest.mark.parametrize(
    "data",
    [
        handshake(),  # nobody says whose it is
        named("r2", f"{ROBOT_HEADER}: r3"),
        named("r/2"),
        named("r2", path="/v1/stream?x=1"),
        named("r2") + frame(TEXT, b"{}"),
        named("r2").replace(b"GET", b"PUT", 1),
        named("r2").replace(b"HTTP/1.1", b"HTTP/1.0", 1),
        named("r2").replace(b"Upgrade: websocket", b"Upgrade: h2c"),
        named("r2").replace(b"Host: ", b" Host: "),
        named("r2", "A: " + "b" * 5000),
        request("GET", "/healthz", b"", "Connection: close"),
        b"\r\n\r\n",
    ],
)
def test_what_is_no_such_request_goes_the_ordinary_way(
    tmp_path: Path, data: bytes, protocols_made: list[Http]
) -> None:
    with service(tmp_path) as running:
        running.raw().open("r1")
        before = len(protocols_made)
        with dialled(running) as (own,):
            own.sendall(data)
            until(lambda: len(protocols_made) == before + 1)


def test_a_head_that_comes_later_is_waited_for(
    tmp_path: Path, protocols_made: list[Http], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "PATIENCE", 60.0)
    with service(tmp_path) as running:
        running.raw().open("r1")
        before = len(protocols_made)
        with dialled(running, 3) as (whole, late, gone):
            until(lambda: len(running.server.acceptor._waiting) == 3)
            whole.sendall(named("r2"))
            assert error(heard(whole, 10.0))[1] == "too_many_robots"
            gone.close()
            until(lambda: len(running.server.acceptor._waiting) == 1)
            monkeypatch.setattr(acceptor, "PATIENCE", 0.0)
            until(lambda: not running.server.acceptor._waiting)
            late.sendall(request("GET", "/healthz", b"", "Connection: close"))
            assert heard(late, 10.0).startswith("HTTP/1.1 200")
        assert len(protocols_made) == before + 2  # the one that left, and the late one


def test_a_head_in_two_parts_goes_the_ordinary_way(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        running.raw().open("r1")
        with dialled(running) as (own,):
            data = named("r2")
            own.sendall(data[:40])
            until(lambda: live(running) == 2)
            own.sendall(data[40:])
            assert own.recv(65536).startswith(b"HTTP/1.1 101")


def test_who_may_not_ask_learns_nothing(tmp_path: Path) -> None:
    """Neither how many robots there are, nor at what rate they are refused."""
    with service(tmp_path, token=TOKEN, tcp=True, rate=50.0) as running:
        running.raw(TOKEN).open("r1")
        bearer = f"Authorization: Bearer {TOKEN}"
        assert error(said(running, named("r2", bearer))) == ("429", "too_many_robots")
        for headers in ([], ["Authorization: Bearer another-token-of-16"]):
            told = said(running, named("r2", *headers))
            assert error(told) == ("401", "unauthorized")
            assert "www-authenticate: Bearer" in told and "robots" not in told
        foreign = named("r2", bearer, "Origin: http://elsewhere.example")
        assert error(said(running, foreign)) == ("403", "forbidden")
        assert running.host.counts["unauthorized"] == 2
        names = {error(said(running, named("r2", bearer)))[1] for _ in range(200)}
        assert names == {"too_many_robots", "too_fast"}


def test_those_that_wait_at_the_door_are_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "PATIENCE", 60.0)
    monkeypatch.setattr("wmrt.service.server.SPARE", 3)
    with service(tmp_path, connections=5) as running:
        raw = running.raw()
        raw.open("r1")
        with dialled(running, 40):
            waiting = running.server.acceptor._waiting
            until(lambda: len(waiting) + live(running) == 40 or live(running) > 30)
            assert len(waiting) <= 7
            assert raw.acted(0).sequence == 0
        until(lambda: http_status(tmp_path / "wmrt.sock", "/healthz") == 200)


def test_many_at_once_are_accepted_a_few_at_a_time(tmp_path: Path) -> None:
    """Whatever else waits in the event loop has its turn in between."""
    with service(tmp_path) as running:
        running.raw().open("r1")
        turns: list[int] = []
        loop = running.host.outbox.loop
        counts = running.host.counts

        def turn() -> None:
            turns.append(counts["too_many_robots"])
            if counts["too_many_robots"] < 40:
                loop.call_soon(turn)

        held, go = threading.Event(), threading.Event()
        loop.call_soon_threadsafe(lambda: (held.set(), go.wait(30.0)))
        assert held.wait(30.0)
        with dialled(running, 40) as owns:
            for own in owns:
                own.sendall(named("r2"))
            loop.call_soon_threadsafe(turn)
            go.set()
            for own in owns:
                assert error(heard(own, 10.0)) == ("429", "too_many_robots")
        until(lambda: turns and turns[-1] >= 40)
        steps = [b - a for a, b in itertools.pairwise(turns)]
        assert max(steps) <= AT_ONCE and sum(steps) + turns[0] == 40


def test_heads_of_any_bytes_are_told_apart(seed: int) -> None:
    rng = random.Random(seed)
    good = named("r2")
    assert opening(good, ("10.0.0.1", 5)) is not None
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
        found = opening(bytes(data), None)
        if found is not None:
            assert dict(found["headers"])[b"upgrade"].lower() == b"websocket"
            assert all(name == name.lower() and b"\r\n" not in value
                       for name, value in found["headers"])  # fmt: skip
