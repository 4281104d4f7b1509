"""The short way of binary messages: the same answers as over the long way, however frames come."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import uvicorn
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from tests.core.codecs import WAYS, arm
from tests.service.doubles import Running, service, until
from tests.service.raw import Raw, state
from wmrt.client.frames import bounds
from wmrt.core.wire import Acted
from wmrt.service.direct import EXTENSION, DirectWebSocket, framed
from wmrt.service.outgoing import Outgoing

BINARY, TEXT, CONT, PING = 2, 1, 0, 9


@pytest.fixture(params=WAYS, autouse=True)
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes and reads the messages: all of it holds for both."""
    arm(request.param, monkeypatch)


@pytest.fixture(params=["owned", "direct", "asgi"])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """Every test is run with the long way too: what it says is what the short one has to do."""
    with service(tmp_path, websocket=request.param, max_body=1 << 20) as one:
        one.name = request.param  # type: ignore[attr-defined]
        yield one


def frame(data: bytes, opcode: int = BINARY, *, fin: bool = True, masked: bool = True) -> bytes:
    """As a client sends it."""
    head = bytes([opcode | (0x80 if fin else 0)])
    size, bit = len(data), 0x80 if masked else 0
    if size < 126:
        head += bytes([size | bit])
    elif size < 1 << 16:
        head += bytes([126 | bit]) + struct.pack("!H", size)
    else:
        head += bytes([127 | bit]) + struct.pack("!Q", size)
    if not masked:
        return head + data
    key = os.urandom(4)
    return head + key + bytes(byte ^ key[i % 4] for i, byte in enumerate(data))


def own_socket(raw: Raw) -> socket.socket:
    own = raw.channel._line._own
    own.settimeout(10.0)  # `sendall` waits then
    return own


def test_frames_in_pieces_and_several_at_once(running: Running, seed: int) -> None:
    draw, raw = random.Random(seed), running.raw()
    raw.open()
    sequence = heard = 0
    for _ in range(6):
        stream = b""
        for _ in range(draw.randint(1, 4)):
            stream += frame(raw.packed(sequence, state=state(sequence / 100)))
            if draw.random() < 0.5:
                stream += frame(b"?", PING)
            sequence += 1
        while stream:
            size = draw.choice([1, 2, 3, 7, 50, 400])
            own_socket(raw).sendall(stream[:size])
            stream = stream[size:]
        told = [raw.hear()]
        while not (isinstance(told[-1], Acted) and told[-1].sequence == sequence - 1):
            told.append(raw.hear())  # a refusal or an answer each, or fewer: the newest wins
        heard += len(told)
        assert heard <= sequence  # an answer overtakes refusals, which may come a round later
        answered = [one for one in told if isinstance(one, Acted)]
        assert all(abs(one.action[0] - one.sequence / 100) < 1e-6 for one in answered)
        named = {one["error"]["name"] for one in told if isinstance(one, dict)}
        assert named <= {"superseded"}


def test_fragments_and_what_comes_between(running: Running) -> None:
    raw = running.raw()
    raw.open()
    for sequence in range(3):
        data = raw.packed(sequence, state=state(0.5))
        parts = [data[:10], data[10:30], data[30:]]
        own_socket(raw).sendall(
            frame(parts[0], fin=False)
            + frame(b"", PING)
            + frame(parts[1], CONT, fin=False)
            + frame(parts[2], CONT)
        )
        answer = raw.hear()
        assert (answer.sequence, answer.action[0]) == (sequence, 0.5)
    assert raw.acted(3).sequence == 3
    own_socket(raw).sendall(frame(b"x", fin=False) + frame(raw.packed(4)))
    assert raw.closed() == 1002  # a message begins within another one


def test_nothing_overtakes_a_text(running: Running) -> None:
    raw = running.raw()
    raw.open()
    raw.acted(0)
    for turn in range(10):
        reset = json.dumps({"kind": "reset", "version": 1, "robot": "r1"}).encode()
        text = json.dumps({"kind": "fly", "version": 1}).encode()
        old = raw.packed(turn + 1)
        own_socket(raw).sendall(frame(text, TEXT) + frame(reset, TEXT) + frame(old))
        told = [raw.hear() for _ in range(3)]
        names = [one.get("error", {}).get("name", one["kind"]) for one in told]
        assert names[0] == "malformed"
        # The observation came after the reset and says that it is of the last episode.
        assert set(names[1:]) == {"opened", "stale_epoch"}, names
        raw.opened = next(one for one in told if one["kind"] == "opened")
    assert running.seats[0].asked == 4  # the warm-up's three, and the first one


def test_what_is_no_frame_of_a_client_ends_the_connection(running: Running) -> None:
    for wrong, code in (
        (lambda raw: frame(raw.packed(0), masked=False), 1002),
        (lambda raw: bytes([0xC2]) + frame(raw.packed(0))[1:], 1002),  # a reserved bit
        (lambda raw: frame(b"", 0xB), 1002),
        (lambda raw: bytes([0x82, 0xFF]) + struct.pack("!Q", 1 << 40), 1009),  # not whole, ever
        (lambda raw: frame(b"\xff\xfe", TEXT), 1007),
    ):
        raw = running.raw()
        raw.open()
        own_socket(raw).sendall(wrong(raw))
        assert raw.closed() == code
        until(lambda: running.host.registry.places["r1"].session.holder is None)
        running.host.registry.places["r1"].session.released = True


def test_large_messages(running: Running, seed: int) -> None:
    raw = running.raw()
    raw.open()
    for size in (125, 126, 65535, 65536, 900_000):
        own_socket(raw).sendall(frame(random.Random(seed).randbytes(size)))
        assert raw.hear()["error"]["name"] == "malformed"
    assert raw.acted(0).sequence == 0


def test_what_comes_before_a_client_is_let_in_goes_the_long_way() -> None:
    """And so does all that follows: where its frames begin is not known."""
    got: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scope["extensions"][EXTENSION].take = lambda data: got.append(data) or 0.0
        await receive()
        await asyncio.sleep(0.01)
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            got.append(message)

    async def run() -> None:
        config = uvicorn.Config(application, ws=DirectWebSocket, log_config=None)
        config.load()
        protocol = DirectWebSocket(config, ServerState(), {})
        transport = MagicMock()
        transport.is_closing.return_value = False
        protocol.connection_made(transport)
        protocol.data_received(
            b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n"
            b"Sec-WebSocket-Version: 13\r\n\r\n"
        )
        early = frame(b"early")
        protocol.data_received(early[:7])
        while not protocol.handshake_complete:
            await asyncio.sleep(0.01)
        protocol.data_received(early[7:] + frame(b"after"))
        for _ in range(5):
            await asyncio.sleep(0.01)
        protocol.connection_lost(None)

    asyncio.run(run())
    assert [message["bytes"] for message in got] == [b"early", b"after"]


def test_answers_do_take_the_short_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long: list[Any] = []
    write = Outgoing.write

    async def told(self: Outgoing) -> None:
        send = self._send

        async def sending(message: Any) -> None:
            long.append(message)
            await send(message)

        self._send = sending
        await write(self)

    monkeypatch.setattr(Outgoing, "write", told)
    for kind, expected in (("owned", 1), ("direct", 1), ("asgi", 11)):
        long.clear()
        with service(tmp_path, websocket=kind) as running:
            raw = running.raw()
            raw.open()
            for sequence in range(10):
                assert raw.acted(sequence).sequence == sequence
        assert sum(one["type"] == "websocket.send" for one in long) == expected


def test_frames_are_read_and_written_as_the_library_does(seed: int) -> None:
    draw = random.Random(seed)
    for size in (0, 1, 125, 126, 127, 65535, 65536, draw.randint(2, 10**5)):
        data = draw.randbytes(size)
        assert framed(data) == Frame(Opcode.BINARY, data).serialize(mask=False)
        sent = b"??" + frame(data)
        found = bounds(sent, 2)
        assert found == (len(sent) - size, len(sent))
        head = found[0] - 2
        for cut in range(head - 4):
            assert bounds(sent[: 2 + cut], 2) is None
