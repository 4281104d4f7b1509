"""What a peer can keep open or pile up: connections, heads, pongs, fragments, unread answers."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import state
from tests.service.test_server import http_status
from tools.wire import CONT, PING, TEXT, frame, frames_of, handshake, heard, request
from wmrt.service import protocols
from wmrt.service.protocols import FRAGMENTS, PIECE


@contextlib.contextmanager
def dialled(running: Running, count: int = 1) -> Iterator[list[socket.socket]]:
    """Connections that say nothing yet."""
    with contextlib.ExitStack() as stack:
        owns = []
        for _ in range(count):
            own = stack.enter_context(socket.socket(socket.AF_UNIX))
            own.settimeout(10.0)
            own.connect(running.address.removeprefix("unix:"))
            owns.append(own)
        yield owns


def upgraded(own: socket.socket) -> None:
    own.sendall(handshake())
    data = b""
    while b"\r\n\r\n" not in data:
        data += own.recv(1)
    assert data.startswith(b"HTTP/1.1 101"), data


def live(running: Running) -> int:
    return len(running.server.server_state.connections)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "HEAD", 0.4)
    monkeypatch.setattr(protocols, "STALL", 0.4)


def test_connections_that_say_nothing_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocols, "SPARE", 3)
    with service(tmp_path, connections=5) as running:
        raw = running.raw()
        raw.open()
        with dialled(running, 40) as owns:
            until(lambda: running.host.counts["too_many_connections"] >= 33)
            until(lambda: live(running) <= 8)
            time.sleep(0.2)
            assert live(running) == 8  # and no more of them than had to
            assert http_status(tmp_path / "wmrt.sock", "/healthz") == 200
            assert raw.acted(0).step == 1  # and the robot is not the one that goes
            assert owns[0].recv(1) == b""  # the oldest is


def test_one_more_than_all_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "SPARE", 0)
    with service(tmp_path, connections=2) as running:
        first, second = running.raw(), running.raw()
        with dialled(running) as (own,):
            said = heard(own, 5.0)
        assert said.startswith("HTTP/1.1 429")
        head, _, body = said.partition("\r\n\r\n")
        assert json.loads(body)["error"]["name"] == "too_many_connections"
        assert f"content-length: {len(body)}" in head
        assert first.open()["kind"] == "opened" and second.open("r9")["kind"] == "refused"


@pytest.mark.usefixtures("hasty")
def test_a_head_has_its_time_however_it_drips(tmp_path: Path) -> None:
    with service(tmp_path) as running, dialled(running, 2) as (drips, answered):
        answered.sendall(request("GET", "/healthz"))
        began = time.monotonic()
        with pytest.raises(OSError):
            for byte in b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 1000:
                drips.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - began < 8.0
        until(lambda: live(running) == 0)  # nor is the other one kept after its answer
        assert running.host.counts["too_slow"] == 2


@pytest.mark.usefixtures("hasty")
def test_answers_that_nobody_reads_end_the_connection(tmp_path: Path) -> None:
    with service(tmp_path) as running, dialled(running) as (own,):
        until(lambda: live(running) == 1)
        own.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                own.send(request("GET", "/openapi.json") * 20)
        until(lambda: live(running) == 0, 30.0)
        until(lambda: running.server.gate.connections == 0)


def test_a_head_of_any_size_is_looked_at_in_pieces(tmp_path: Path) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20_000 + b"\r\n"
    assert len(head) > 5 * PIECE
    with service(tmp_path) as running, dialled(running) as (own,):
        with contextlib.suppress(OSError):
            own.sendall(head)
        assert not heard(own, 5.0).startswith("HTTP/1.1 200")  # a reset may overtake the 400
        until(lambda: live(running) == 0)
        with dialled(running) as (own,):  # one that fits, and a body beyond one piece
            body = json.dumps({"robot": "r1", "session": "x" * 3 * PIECE}).encode()
            own.sendall(request("POST", "/v1/reset", body, "Connection: close"))
            assert "16 hex digits" in heard(own, 5.0)


def test_pongs_do_not_pile_up(tmp_path: Path) -> None:
    pings = frame(PING, bytes(125)) * 400
    with service(tmp_path) as running, dialled(running) as (own,):
        upgraded(own)
        own.sendall(frame(TEXT, b'{"kind":"open","version":1,"robot":"r1"}'))
        until(lambda: running.host.registry.places)
        (one,) = running.server.server_state.connections
        sent = most = 0
        while sent < 8 << 20:  # much more than the kernel keeps of a Unix socket
            own.sendall(pings)
            sent += len(pings)
            most = max(most, one.transport.get_write_buffer_size())  # type: ignore[union-attr]
        assert 0 < most < 1 << 20


@pytest.mark.parametrize("count", [FRAGMENTS, FRAGMENTS + 1])
def test_a_message_has_so_many_pieces_at_most(tmp_path: Path, count: int) -> None:
    text = b'{"kind":"open","version":1,"robot":"r1"}'
    pieces = frame(TEXT, text, fin=False) + frame(CONT, b"", fin=False) * (count - 2)
    with service(tmp_path) as running, dialled(running) as (own,):
        upgraded(own)
        own.sendall(pieces + frame(CONT, b"", fin=False) + frame(CONT, b""))
        (opcode, data), *_ = frames_of(heard(own, 2.0).encode("latin-1"))
        if count == FRAGMENTS:
            assert opcode == TEXT and json.loads(data)["kind"] == "opened"
        else:
            assert (opcode, data[:2]) == (8, (1009).to_bytes(2, "big"))


def test_who_reads_nothing_and_answers_no_ping_lets_go_of_its_robot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing it would wait for what is unread to be read."""
    monkeypatch.setattr(protocols, "STALL", 1000.0)
    with service(tmp_path, ping=0.5) as running, dialled(running) as (own,):
        upgraded(own)
        own.sendall(frame(TEXT, b'{"kind":"open","version":1,"robot":"r1"}'))
        until(lambda: running.host.registry.places)
        place = running.host.registry.places["r1"]
        message: dict[str, Any] = {"kind": "observation", "version": 1, "robot": "r1", "epoch": 0}
        message |= {"session": f"{place.session.id:016x}", "state": state()}
        (one,) = running.server.server_state.connections
        sequence, end = 0, time.monotonic() + 20.0
        with contextlib.suppress(OSError):
            while place.session.holder is not None and time.monotonic() < end:
                own.sendall(frame(TEXT, json.dumps({**message, "sequence": sequence}).encode()))
                sequence += 1
        until(lambda: place.session.holder is None)
        assert live(running) == 0 and one.transport.is_closing()


def test_a_request_after_the_other_keeps_its_connection(tmp_path: Path) -> None:
    with service(tmp_path, [CanarySeat()]) as running, dialled(running) as (own,):
        for _ in range(3):
            own.sendall(request("GET", "/healthz"))
            said = b""
            while not said.endswith(b'{"ok":true}'):
                said += own.recv(4096)
            assert said.startswith(b"HTTP/1.1 200")
        assert live(running) == 1 and running.host.counts["too_slow"] == 0
