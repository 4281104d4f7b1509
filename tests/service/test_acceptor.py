"""Connections are accepted a few at a time, and refused before they are any."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import Raw
from tests.service.test_protocols import dialled, live
from tests.service.test_server import http_status
from tools.wire import TEXT, dial, frame, handshake, heard, request
from wmrt.client import connect
from wmrt.core.errors import ServiceError
from wmrt.core.wire import ROBOT_HEADER
from wmrt.service import acceptor
from wmrt.service.acceptor import AT_ONCE, Acceptor
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


class Held(CanarySeat):
    """Every step takes until ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def step(self, state: Any, previous_action: Any) -> Any:
        assert self.go.wait(60.0)
        return super().step(state, previous_action)


@contextlib.contextmanager
def stepping(
    tmp_path: Path, waiting: int = 0, **changes: Any
) -> Iterator[tuple[Running, Raw, Held, list[socket.socket]]]:
    """A service whose one robot waits for an answer, until its seat goes on; connections that were
    there before, and say nothing yet."""
    seat = Held()
    with service(tmp_path, [seat], deadline=60.0, **changes) as running:
        raw = running.raw()
        raw.open("r1")
        with dialled(running, waiting) as owns:
            until(lambda: len(running.server.acceptor._waiting) == waiting)
            seat.go.clear()
            try:
                raw.say(raw.packed(0))
                until(lambda: running.host.outbox.working)
                yield running, raw, seat, owns
            finally:
                seat.go.set()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is refused waits for steps for as long as they take."""
    for name in ("ONE", "ALL", "PATIENCE"):
        monkeypatch.setattr(acceptor, name, 60.0)


@pytest.mark.parametrize("websocket", ["owned", "direct", "asgi"])
def test_whoever_is_refused_waits_for_a_step(tmp_path: Path, patient: None, websocket: str) -> None:
    with service(tmp_path, websocket=websocket) as running:  # not while no step is under way
        running.raw().open("r1")
        assert error(said(running, named("r2")))[1] == "too_many_robots"
    with (
        stepping(tmp_path, websocket=websocket) as (running, raw, seat, _),
        dialled(running, 9) as owns,
    ):
        counts, door = running.host.counts, running.server.acceptor
        for own in owns:
            own.sendall(named("r2"))
        until(lambda: door._resting)
        time.sleep(0.05)
        assert counts["too_many_robots"] == 0 and not door._waiting
        seat.go.set()
        assert raw.hear().sequence == 0
        for own in owns:
            assert error(heard(own, 10.0)) == ("429", "too_many_robots")
        until(lambda: not running.host.outbox.working)
        assert counts["too_many_robots"] == 9


def test_a_late_head_waits_for_a_step(tmp_path: Path, patient: None) -> None:
    with stepping(tmp_path, waiting=7) as (running, raw, seat, owns):
        for own in owns:
            own.sendall(named("r2"))
        door = running.server.acceptor
        until(lambda: len(door._heads) == 7)
        time.sleep(0.05)
        assert running.host.counts["too_many_robots"] == 0
        seat.go.set()
        assert raw.hear().sequence == 0
        for own in owns:
            assert error(heard(own, 10.0)) == ("429", "too_many_robots")
        assert not door._waiting and not door._heads


def test_a_step_that_hangs_keeps_nobody_at_the_door(tmp_path: Path) -> None:
    """184 at once, half of them with their heads too late, some never: all are answered."""
    with stepping(tmp_path, connections=400) as (running, raw, seat, _):
        with dialled(running, 200) as owns:
            for own in owns[::2]:
                own.sendall(named("r2"))
            health = http_status(tmp_path / "wmrt.sock", "/healthz")
            for own in owns[1:168:2]:
                own.sendall(named("r2"))
            told = [error(heard(own, 30.0)) for own in (*owns[::2], *owns[1:168:2])]
        assert told == [("429", "too_many_robots")] * 184 and health == 200
        assert running.host.counts["too_many_robots"] == 184
        assert running.host.outbox.working  # all the time
        seat.go.set()
        assert raw.hear().sequence == 0


def test_one_is_told_after_a_moment_and_all_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """While steps are under way: one each `ONE` seconds, and after `ALL` whoever is left."""
    one, together = 0.05, random.Random(seed).uniform(0.3, 0.6)
    monkeypatch.setattr(acceptor, "ONE", one)
    monkeypatch.setattr(acceptor, "ALL", together)
    monkeypatch.setattr(acceptor, "PATIENCE", 60.0)
    with stepping(tmp_path) as (running, _, _, _), dialled(running, 40) as owns:
        for own in owns:
            own.sendall(named("r2"))
        until(lambda: running.server.acceptor._resting)
        began = time.monotonic()
        until(lambda: running.host.counts["too_many_robots"] == 1)
        until(lambda: time.monotonic() - began > 0.2)
        assert running.host.counts["too_many_robots"] <= 5  # 40 with none that waits
        until(lambda: running.host.counts["too_many_robots"] == 40)
        assert time.monotonic() - began > 0.25  # not before: 0.3, less what came before the look
        for own in owns:
            assert error(heard(own, 10.0)) == ("429", "too_many_robots")


def test_a_stop_leaves_nobody_who_waits_for_a_step(tmp_path: Path, patient: None) -> None:
    with stepping(tmp_path, waiting=3, drain=0.1) as (running, _, _, owns):
        owns[0].sendall(named("r2"))
        until(lambda: len(running.server.acceptor._heads) == 1)
        running.server.should_exit = True
        for own in owns:
            with contextlib.suppress(ConnectionResetError):  # its head was not read
                assert own.recv(1 << 16) == b""


def test_who_rests_does_not_ask_a_system_without_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "RETRY", 0.3)
    asked: list[float] = []

    class Listening(socket.socket):
        def accept(self) -> Any:
            asked.append(time.monotonic())
            if len(asked) == 1:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    async def connected(own: socket.socket) -> None:
        own.close()

    async def run() -> None:
        with Listening(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as peer:
            own.bind(str(tmp_path / "s"))
            own.listen(8)
            one = Acceptor([own], None, connected, lambda: 9)
            one.start()
            peer.connect(str(tmp_path / "s"))
            end = time.monotonic() + 20.0
            while len(asked) < 3 and time.monotonic() < end:
                one._rest(0.0)
                await asyncio.sleep(0.001)
            one.stop()

    asyncio.run(run())
    assert asked[1] - asked[0] >= 0.29


def test_a_system_without_files_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(acceptor, "RETRY", 0.02)
    code = random.Random(seed).choice([errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
    failing = [OSError(code, os.strerror(code))] * 2
    got: list[socket.socket] = []

    class Listening(socket.socket):
        def accept(self) -> Any:
            if failing:
                raise failing.pop()
            return super().accept()

    async def connected(own: socket.socket) -> None:
        got.append(own)

    async def run() -> None:
        with Listening(socket.AF_UNIX) as own:
            own.bind(str(tmp_path / "s"))
            own.listen(8)
            one = Acceptor([own], None, connected, lambda: 9)
            one.start()
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(tmp_path / "s"))
                end = time.monotonic() + 20.0
                while not got and time.monotonic() < end:
                    await asyncio.sleep(0.005)
            one.stop()

    asyncio.run(run())
    assert len(got) == 1 and not failing
    got[0].close()


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
