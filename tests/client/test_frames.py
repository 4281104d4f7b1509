"""Frames of the short way are websockets' own, byte for byte where they can be."""

from __future__ import annotations

import random
from typing import Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from tests.core.codecs import ARMS, arm
from wmrt.client import frames
from wmrt.client.frames import bounds, is_plain

SIZES = [0, 1, 125, 126, 127, 65535, 65536, 100_000]


@pytest.fixture(params=ARMS)
def masked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    native = arm(request.param, monkeypatch).native
    return frames.masked if native is None else native.masked


@pytest.mark.parametrize("size", SIZES)
def test_a_masked_message_is_one(masked: Any, size: int, seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    frame = masked(data)
    made = Frame(Opcode.BINARY, data).serialize(mask=True)
    assert len(frame) == len(made) and frame[0] == made[0]
    assert bounds(frame, 0) == (len(frame) - size, len(frame)) and not is_plain(frame, 0)
    server = ServerProtocol(state=State.OPEN, max_size=None)
    server.receive_data(frame)
    (event,) = server.events_received()
    assert isinstance(event, Frame) and bytes(event.data) == data and event.fin
    assert masked(bytes(64)) != masked(bytes(64))  # nobody can know what goes over the wire


@pytest.mark.parametrize("size", SIZES)
def test_where_a_frame_begins_and_ends(size: int, seed: int) -> None:
    rng = random.Random(seed)
    before, data = rng.randbytes(rng.randint(0, 9)), rng.randbytes(size)
    frame = Frame(Opcode.BINARY, data).serialize(mask=False)
    whole, at = before + frame + b"more", len(before)
    begin, end = bounds(whole, at) or (0, 0)
    assert whole[begin:end] == data and is_plain(whole, at)
    for cut in range(begin - at):
        assert bounds(whole[: at + cut], at) is None
    for opcode in (Opcode.TEXT, Opcode.CONT, Opcode.PING, Opcode.CLOSE):
        assert not is_plain(Frame(opcode, b"").serialize(mask=False), 0)
    assert not is_plain(Frame(Opcode.BINARY, data, fin=False).serialize(mask=False), 0)
