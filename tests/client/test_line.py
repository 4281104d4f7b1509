"""A socket with deadlines: all of it is read and written, or told in time."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from wmrt.client.line import Line


@pytest.fixture
def pair() -> Iterator[tuple[Line, socket.socket]]:
    ours, theirs = socket.socketpair()
    line = Line(ours)
    with theirs:
        yield line, theirs
    line.close()


def soon(seconds: float = 0.1) -> float:
    return time.monotonic() + seconds


def test_bytes_come_and_go(pair: tuple[Line, socket.socket]) -> None:
    line, peer = pair
    assert not line.readable()
    peer.sendall(b"there")
    assert line.readable() and line.read(soon(10.0)) == b"there"
    line.write(b"back", soon(10.0))
    assert peer.recv(100) == b"back"
    line.end()
    assert peer.recv(100) == b""
    peer.close()
    assert line.read(soon(10.0)) == b""


def test_what_does_not_fit_is_written_as_it_is_read(
    pair: tuple[Line, socket.socket], seed: int
) -> None:
    line, peer = pair
    data, got = random.Random(seed).randbytes(4 << 20), bytearray()

    def read() -> None:
        while len(got) < len(data):
            got.extend(peer.recv(100_000))

    reader = threading.Thread(target=read)
    reader.start()
    line.write(data, soon(60.0))
    reader.join(60.0)
    assert bytes(got) == data


def test_nothing_waits_beyond_its_deadline(pair: tuple[Line, socket.socket]) -> None:
    line, _ = pair
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        line.read(soon())
    with pytest.raises(TimeoutError):
        line.write(bytes(4 << 20), soon())
    assert 0.2 <= time.monotonic() - began < 10.0
    for call in (lambda: line.read(soon(-1.0)), lambda: line.write(bytes(4 << 20), soon(-1.0))):
        with pytest.raises(TimeoutError):
            call()


def test_a_peer_that_is_gone_is_an_error(pair: tuple[Line, socket.socket]) -> None:
    line, peer = pair
    peer.close()
    with pytest.raises(OSError):
        for _ in range(100):
            line.write(bytes(1000), soon(10.0))
    line.close()
    with pytest.raises(OSError):
        line.read(soon(10.0))
