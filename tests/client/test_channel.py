"""One connection of a client, against a server that does what it is told to."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from tests.core.codecs import WAYS, arm
from tests.core.test_wire import acted
from wmrt.client.address import Address
from wmrt.client.channel import Channel, Lost
from wmrt.core.wire import Acted, pack_acted, unpack_acted


@pytest.fixture(params=WAYS, autouse=True)
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes and reads the messages: all of it holds for both."""
    arm(request.param, monkeypatch)


def test_what_is_said_before_a_close_is_heard(tmp_path: Path) -> None:
    """Although the answer to the close finds nobody there any more."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen(1)

        def serve() -> tuple[socket.socket, ServerProtocol]:
            peer, _ = listening.accept()
            protocol = ServerProtocol()
            while protocol.state is State.CONNECTING:
                protocol.receive_data(peer.recv(65536))
                for request in protocol.events_received():
                    protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
                _say(peer, protocol)
            return peer, protocol

        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve)
            channel = Channel(Address(f"unix:{tmp_path}/s"), None, time.monotonic() + 30.0, None)
            peer, protocol = served.result(30.0)
    protocol.send_binary(b"the last action")
    protocol.send_close(1012)
    _say(peer, protocol)
    peer.close()
    assert channel.receive(time.monotonic() + 30.0) == b"the last action"
    with pytest.raises(Lost) as lost:
        channel.receive(time.monotonic() + 30.0)
    assert lost.value.code == 1012
    channel.drop()


def _say(peer: socket.socket, protocol: ServerProtocol) -> None:
    peer.sendall(b"".join(data for data in protocol.data_to_send() if data))


def any_frames(rng: random.Random) -> tuple[bytes, list[bytes | str]]:
    """Messages of every form, one after the other, and what is to be heard of them."""
    wire, wanted = b"", list[bytes | str]()
    for _ in range(rng.randint(1, 30)):
        text, data = rng.random() < 0.3, rng.randbytes(rng.choice([0, 5, 125, 126, 70_000]))
        data = data.hex().encode() if text else data
        parts = rng.choice([1, 1, 1, 2, 4])
        at = sorted(rng.randrange(len(data) + 1) for _ in range(parts - 1))
        pieces = [data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)]
        for number, piece in enumerate(pieces):
            opcode = Opcode.CONT if number else Opcode.TEXT if text else Opcode.BINARY
            frame = Frame(opcode, piece, fin=number == len(pieces) - 1)
            wire += frame.serialize(mask=False)
            if rng.random() < 0.2:  # control frames may come between fragments
                wire += Frame(Opcode.PING, b"?").serialize(mask=False)
        wanted.append(data.decode() if text else data)
    return wire, wanted


@pytest.mark.parametrize("known", [True, False])
def test_messages_in_any_pieces_are_heard(tmp_path: Path, seed: int, known: bool) -> None:
    """The short way and websockets' own."""
    rng = random.Random(seed)
    with dialled(tmp_path) as (channel, peer):
        assert channel._known  # nothing came with the handshake
        channel._known = known
        for _ in range(5):
            wire, wanted = any_frames(rng)
            writer = threading.Thread(target=torn, args=(random.Random(seed), peer, wire))
            writer.start()
            assert [channel.receive(soon()) for _ in wanted] == wanted
            writer.join(30.0)
            assert channel._known is known and channel._rest == b"" and not channel._messages


def test_answers_are_heard_between_any_frames(tmp_path: Path, seed: int) -> None:
    """In any pieces, and in their order; one that comes alone is one already where C reads it."""
    rng = random.Random(seed)
    with dialled(tmp_path) as (channel, peer):
        wire, wanted = b"", list[Any]()
        for _ in range(40):
            if rng.random() < 0.7:
                wanted.append(acted(rng))
                wire += Frame(Opcode.BINARY, pack_acted(wanted[-1])).serialize(mask=False)
            else:
                more, heard = any_frames(rng)
                wire, wanted = wire + more, wanted + heard
        writer = threading.Thread(target=torn, args=(random.Random(seed), peer, wire))
        writer.start()
        for want in wanted:
            got = channel.answer(soon())
            packed = isinstance(want, Acted) and isinstance(got, bytes)
            assert (unpack_acted(got) if packed else got) == want
        writer.join(30.0)
        kinds = set()
        for _ in range(20):
            channel.silent = 1.0
            one = acted(rng)
            peer.sendall(Frame(Opcode.BINARY, pack_acted(one)).serialize(mask=False))
            kinds.add(type(got := channel.answer(soon())))
            assert (got if isinstance(got, Acted) else unpack_acted(got)) == one
            assert channel.silent is None
        assert kinds == {bytes if channel._receive is None else Acted}
        channel.silent = 1.0
        with pytest.raises(TimeoutError):
            channel.answer(time.monotonic() + 0.02)
        assert channel.silent == 1.0
        peer.close()
        with pytest.raises(Lost, match=r"closed|reset"):
            channel.answer(soon())
        channel.drop()
        assert channel._line.file is None


def torn(rng: random.Random, peer: socket.socket, wire: bytes) -> None:
    while wire:
        size = rng.choice([1, 2, 3, 50, 20_000, 1 << 20])
        peer.sendall(wire[:size])
        wire = wire[size:]


def test_a_message_beyond_the_limit_is_refused_before_it_is_whole(tmp_path: Path) -> None:
    with dialled(tmp_path) as (channel, peer):
        peer.sendall(b"\x82\x7f" + (1 << 40).to_bytes(8, "big") + bytes(1000))
        with pytest.raises(TimeoutError):  # until the other side closes, too
            channel.receive(time.monotonic() + 0.1)
        said = peer.recv(4096)
        assert said[0] == 0x88  # it is told
        peer.sendall(b"\x82\x01a" * 5)
        peer.close()
        with pytest.raises(Lost):
            channel.receive(soon())


def test_what_comes_with_the_handshake_is_heard(tmp_path: Path) -> None:
    early = Frame(Opcode.BINARY, b"early").serialize(mask=False)
    for cut in range(len(early) + 1):
        with dialled(tmp_path, early[:cut]) as (channel, peer):
            assert channel._known is (cut == 0)
            peer.sendall(early[cut:] + Frame(Opcode.BINARY, b"late").serialize(mask=False))
            assert [channel.receive(soon()) for _ in range(2)] == [b"early", b"late"]
            channel.send(b"there", soon())
            assert peer.recv(100)[:2] == b"\x82\x85"


def soon() -> float:
    return time.monotonic() + 30.0


@contextlib.contextmanager
def dialled(tmp_path: Path, early: bytes = b"") -> Iterator[tuple[Channel, socket.socket]]:
    """A channel, and the server's end after the handshake."""
    path = tmp_path / f"s{len(list(tmp_path.iterdir()))}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def serve() -> socket.socket:
            peer, _ = listening.accept()
            protocol = ServerProtocol()
            protocol.receive_data(peer.recv(65536))
            (request,) = protocol.events_received()
            protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
            peer.sendall(b"".join(protocol.data_to_send()) + early)
            return peer

        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(serve)
            channel = Channel(Address(f"unix:{path}"), None, soon(), None)
            peer = served.result(30.0)
    with peer:
        yield channel, peer
    channel.drop()
