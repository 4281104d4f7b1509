"""Observations as they come from a socket: C and Python find the same ones in the same bytes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.conftest import FULL
from tests.core.codecs import ARMS, arm
from tests.core.pairs import mutated, outcome, shown
from tests.core.test_wire import observed
from tests.model.networks import random_state, schemas, small_schema
from tests.service.doubles import service
from tests.service.raw import state
from tests.service.test_direct import frame
from wmrt.client import channel, connect
from wmrt.core import codec
from wmrt.core.wire import FLOATS, MSGPACK, pack_observed
from wmrt.core.wire_state import StateLayout
from wmrt.service import direct, messages
from wmrt.service.messages import Reader

ROUNDS = 10_000 if FULL else 1_500
SCHEMAS = [small_schema(), *schemas().values()]


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A reader of each codec."""

    def made(schema: Any) -> list[Reader]:
        found = []
        for name in ARMS:
            arm(name, monkeypatch)
            found.append(Reader(schema))
        return found

    return made


def message(rng: random.Random, numbers: np.random.Generator, schema: Any) -> bytes:
    head = observed(rng)
    drawn = random_state(numbers, schema)
    if schema.instruction or rng.random() < 0.2:
        values = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in drawn.items()}
        return pack_observed(head, MSGPACK, msgspec.msgpack.encode(values))
    return pack_observed(head, FLOATS, StateLayout(schema.to_json()).pack(drawn))


def long_head(rng: random.Random, payload: bytes) -> bytes:
    """A frame whose length has more bytes than it needs."""
    key, size = rng.randbytes(4), len(payload)
    head = b"\xfe" + size.to_bytes(2, "big") if rng.random() < 0.5 else b"\xff" + bytes(6)
    head += b"" if head[0] == 0xFE else size.to_bytes(2, "big")
    return b"\x82" + head + key + bytes(b ^ key[i % 4] for i, b in enumerate(payload))


@pytest.mark.parametrize("index", range(len(SCHEMAS)))
def test_the_same_bytes_are_the_same_observations(readers: Any, index: int, seed: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    in_c, in_python = readers(SCHEMAS[index])
    for _ in range(ROUNDS):
        data = message(rng, numbers, SCHEMAS[index])
        if rng.random() < 0.5:
            data = mutated(rng, data)
        assert outcome(in_c.binary, data) == outcome(in_python.binary, data), data.hex()
        before = rng.randbytes(rng.randrange(3))
        at = max(0, len(before) + rng.choice([0, 0, 0, 1, -1]))
        stream = before + (frame(data) if rng.random() < 0.5 else long_head(rng, data))
        stream += rng.choice([b"", frame(data), rng.randbytes(5)])
        if rng.random() < 0.5:
            stream = mutated(rng, stream)
        most = rng.choice([len(data) - 1, len(data), 1 << 17])
        found = [shown(reader.frame(stream, at, most)) for reader in (in_c, in_python)]
        assert found[0] == found[1], (stream.hex(), at, most)


def test_a_frame_and_what_follows_it(readers: Any, seed: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    for reader in readers(SCHEMAS[0]):
        data = message(rng, numbers, SCHEMAS[0])
        first = frame(data)
        seen, end = reader.frame(first + first, 0, len(data))
        assert seen == reader.binary(data) and end == len(first)
        assert reader.frame(first + first, end, len(data)) == (seen, 2 * end)
        assert reader.frame(first, 0, len(data) - 1) is None  # too long
        assert all(reader.frame(first[:cut], 0, 1 << 17) is None for cut in range(len(first)))
        head = b"\x82\x7e" + len(data).to_bytes(
            2, "big"
        )  # no client's, and its key would be itself
        unmasked = bytes(byte ^ head[i % 4] for i, byte in enumerate(data))
        assert reader.frame(head + unmasked, 0, 1 << 17) is None
        assert reader.frame(b"\x82\xfe" + head[2:] + bytes(4) + data, 0, 1 << 17) is not None


@pytest.mark.parametrize("name", ARMS)
def test_both_sides_say_which_codec_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm(name, monkeypatch)
    with service(tmp_path) as running:
        told = running.host.crew.described["codec"]
        assert told == {"requested": name, "resolved": name}
        with connect(running.address, "r1") as client:
            assert client.codec == (name, name, "")


def test_a_step_asks_python_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client and a service say to each other is the plain case throughout."""
    asked: list[str] = []

    def counted(module: Any, name: str) -> None:
        does = getattr(module, name)

        def counting(*given: Any) -> Any:
            asked.append(name)
            return does(*given)

        monkeypatch.setattr(module, name, counting)

    for module, name in (
        *((codec, "pack_acted"), (codec, "unpack_acted"), (codec, "pack_observed")),
        *((messages, "unpack_observed"), (messages, "bounds"), (direct, "head")),
        *((channel, "masked"), (channel, "bounds")),
    ):
        counted(module, name)
    codec._made.cache_clear()
    try:
        arm("c", monkeypatch)
        with service(tmp_path) as running, connect(running.address, "r1") as client:
            client.act(state())  # after which the thread that steps reads the socket
            asked.clear()
            for _ in range(20):
                assert client.act(state(0.5)).source == "policy"
            assert asked == []
            client.act(state(0.5, gap=b"1"))
            assert asked == ["pack_observed"]
    finally:
        codec._made.cache_clear()
