"""What a peer can keep open or pile up: connections, heads, pongs, fragments, unread answers."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.conftest import FULL
from tests.service.doubles import CanarySeat, Running, service, until
from tests.service.raw import state
from tests.service.test_server import http_status
from tools.wire import CONT, PING, TEXT, frame, frames_of, handshake, heard, request
from wmrt.service import peer, protocols
from wmrt.service.peer_websocket import FRAGMENTS
from wmrt.service.protocols import PIECE, SMALL_PIECE
from wmrt.service.security import Gate


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


@pytest.fixture(params=["httptools", "h11"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What parses requests: all of it holds for both."""
    monkeypatch.setenv("WMRT_SERVE_HTTP", request.param)
    return str(request.param)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocols, "HEAD", 0.4)
    monkeypatch.setattr(peer, "STALL", 0.4)


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
    monkeypatch.setattr(peer, "STALL", 1000.0)
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


def answers(own: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Status and body of so many answers."""
    said, found = b"", []
    while len(found) < count:
        head, end, rest = said.partition(b"\r\n\r\n")
        length = next(
            (x for x in head.lower().split(b"\r\n") if x.startswith(b"content-le")), b":0"
        )
        size = int(length.partition(b":")[2])
        if end and len(rest) >= size:
            found.append((int(head[9:12]), rest[:size]))
            said = rest[size:]
            continue
        more = own.recv(65536)
        assert more, (said, found)
        said += more
    assert said == b"", said
    return found


def test_the_parser_is_the_one_asked_for(tmp_path: Path, parser: str) -> None:
    with service(tmp_path) as running, dialled(running) as (own,):
        own.sendall(request("GET", "/healthz"))
        assert answers(own, 1) == [(200, b'{"ok":true}')]
        (one,) = running.server.server_state.connections
        wanted: Any = {"httptools": HttpToolsProtocol, "h11": H11Protocol}[parser]
        assert isinstance(one, wanted)


def test_requests_in_any_pieces_are_answered_in_order(tmp_path: Path, seed: int) -> None:
    """Several at once, heads and bodies torn anywhere, chunked or not, with trailers or without."""
    rng = random.Random(seed)
    with service(tmp_path) as running:
        for _ in range(6 if FULL else 2):
            wire, wanted = b"", []
            for _ in range(rng.randint(1, 40)):
                made, answer = any_request(rng)
                wire, wanted = wire + made, [*wanted, answer]
            with dialled(running) as (own,):
                while wire:
                    size = rng.choice([1, 7, 100, 5000, 300_000])
                    own.sendall(wire[:size])
                    wire = wire[size:]
                    if rng.random() < 0.3:
                        time.sleep(0.002)
                got = [
                    (status, json.loads(body).get("ok") or json.loads(body)["error"]["message"])
                    for status, body in answers(own, len(wanted))
                ]
            assert got == wanted


def any_request(rng: random.Random) -> tuple[bytes, tuple[int, Any]]:
    """One that is as it should be, and what is answered."""
    if rng.random() < 0.4:
        return request("GET", "/healthz"), (200, True)
    filler = "x" * rng.choice([0, 10, 3 * SMALL_PIECE, 2 * PIECE])
    kind = f"text/{rng.randrange(1000)}"
    body = json.dumps({"robot": "r1", "filler": filler}).encode()
    answer = (400, f"content-type {kind}: send application/json")
    if rng.random() < 0.5:
        whole = request("POST", "/v1/act", body).replace(b"application/json", kind.encode())
        return whole, answer
    head = f"POST /v1/act HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    wire = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
    while body:
        size = rng.choice([1, 50, 4000])
        wire += b"%x\r\n" % len(body[:size]) + body[:size] + b"\r\n"
        body = body[size:] if len(wire) < 200_000 else b""
    trailer = b"content-type: application/json\r\n" if rng.random() < 0.5 else b""
    return wire + b"0\r\n" + trailer + b"\r\n", answer


def test_requests_before_an_answer_wait_unparsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(Gate, "check", slow_check(made))
    with service(tmp_path) as running, dialled(running) as (own,):
        own.sendall(request("GET", "/healthz") * 1200)  # which it reads at once
        until(lambda: live(running) == 1)
        (one,) = running.server.server_state.connections
        most = 0
        got = b""
        own.settimeout(0.05)
        for _ in range(20):
            with contextlib.suppress(TimeoutError):
                got += own.recv(65536)
            most = max(most, len(getattr(one, "pipeline", ())))
        assert most < 2 * SMALL_PIECE / len(request("GET", "/healthz")), most
        assert got.count(b"HTTP/1.1 200") > 2


def slow_check(made: list[int]) -> Any:
    check = Gate.check

    def slowly(self: Gate, scope: Any) -> Any:
        made.append(1)
        time.sleep(0.01)
        return check(self, scope)

    return slowly


@pytest.mark.parametrize(
    "before",
    [
        b"GET /" + b"x" * 200,  # a path
        b"GET / HTTP/1.1\r\n" + b"x" * 200,  # a name
        b"GET / HTTP/1.1\r\nX: ",  # a value
        b"POST /v1/act HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\nx\r\n0\r\nX: ",  # after a body
        b"POST /v1/act HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1;",  # beside the size of a part
    ],
)
def test_what_has_no_end_is_ended(tmp_path: Path, before: bytes, seed: int) -> None:
    rng = random.Random(seed)
    with service(tmp_path) as running, dialled(running) as (own,):
        sent = 0
        with contextlib.suppress(OSError):
            own.sendall(before)
            while sent < 1 << 20:
                sent += own.send(b"x" * rng.choice([1000, 5000, PIECE]))
        until(lambda: live(running) == 0)
        assert sent < 1 << 20
        until(lambda: running.server.gate.connections == 0)
        assert http_status(tmp_path / "wmrt.sock", "/healthz") == 200


def test_an_upgrade_to_what_is_not_spoken_here_is_an_ordinary_request(tmp_path: Path) -> None:
    """Some clients offer HTTP/2 with their first request."""
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    body = json.dumps({"robot": "r1", "session": "none"}).encode()
    with service(tmp_path) as running, dialled(running) as (own,):
        whole = request("POST", "/v1/reset", body, *offer)
        for at in (len(whole), len(whole) - len(body), len(whole) - 1, 30):
            own.sendall(whole[:at])
            time.sleep(0.05)
            own.sendall(whole[at:])
            ((status, said),) = answers(own, 1)
            assert status == 400 and b"16 hex digits" in said
        probe = request("GET", "/healthz")
        own.sendall(probe + request("GET", "/healthz", b"", *offer) + whole + probe)
        assert [status for status, _ in answers(own, 4)] == [200, 200, 400, 200]


def test_a_client_that_asks_first_is_told_to_go_on(tmp_path: Path) -> None:
    body = json.dumps({"robot": "r1", "session": "none"}).encode()
    whole = request("POST", "/v1/reset", body, "Expect: 100-continue")
    with service(tmp_path) as running, dialled(running) as (own,):
        own.sendall(whole[: -len(body)])
        said = b""
        while b"\r\n\r\n" not in said:
            said += own.recv(4096)
        assert said.startswith(b"HTTP/1.1 100")
        own.sendall(body)
        assert answers(own, 1)[0][0] == 400


@pytest.mark.parametrize(
    "wrong",
    [
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"GET \xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    ],
)
def test_what_is_no_http_is_ended_at_once(tmp_path: Path, wrong: bytes) -> None:
    with service(tmp_path) as running, dialled(running) as (own,):
        own.sendall(wrong)
        assert heard(own, 5.0)[9:12] in ("400", "501", "")
        until(lambda: live(running) == 0)
        assert running.server.gate.connections == 0


def test_what_follows_a_body_is_no_header(tmp_path: Path) -> None:
    head = b"POST /v1/reset HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b'{"robot":"r1"}'
    chunk = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    with service(tmp_path) as running, dialled(running) as (own,):
        own.sendall(head + chunk + b"Content-Type: application/json\r\n\r\n")
        ((status, said),) = answers(own, 1)
        assert status == 400 and b"content-type none" in said
