"""Messages: there and back, and what is no message."""

from __future__ import annotations

import json
import random

import pytest

from tests.core.codecs import ARMS, arm
from wmrt.core import wire
from wmrt.core.codec import Codec
from wmrt.core.errors import UsageError
from wmrt.core.wire import FLOATS, MSGPACK, Acted, Observed, Refused, WireError


def observed(rng: random.Random) -> Observed:
    return Observed(
        robot="r-" + "é" * rng.randrange(10),
        session=rng.getrandbits(64),
        epoch=rng.getrandbits(32),
        sequence=rng.getrandbits(63),
        state=None,
        captured_ns=rng.choice([None, 0, rng.getrandbits(62)]),
        sent_ns=rng.choice([None, 0, rng.getrandbits(62)]),
    )


def acted(rng: random.Random) -> Acted:
    return Acted(
        robot="r" * rng.randrange(1, 64),
        session=rng.getrandbits(64),
        epoch=rng.getrandbits(32),
        sequence=rng.getrandbits(63),
        step=rng.getrandbits(40),
        action=tuple(rng.randrange(-128, 129) / 128 for _ in range(rng.randrange(5))),
        source=rng.choice(["policy", "fallback"]),
        breakers=rng.choice(["closed", "latched"]),
        tripped=tuple(sorted(rng.sample(range(8), rng.randrange(8)))),
        late=rng.random() < 0.5,
        skipped=rng.getrandbits(20),
        captured_ns=rng.choice([None, rng.getrandbits(60)]),
        queue_ns=rng.getrandbits(40),
        policy_ns=rng.choice([None, rng.getrandbits(40)]),
        act_ns=rng.getrandbits(40),
    )


@pytest.fixture(params=ARMS)
def own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Codec:
    return arm(request.param, monkeypatch)


def test_an_observation_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    for kind in (FLOATS, MSGPACK) * 20:
        head, body = observed(rng), rng.randbytes(rng.randrange(50))
        assert wire.unpack_observed(wire.pack_observed(head, kind, body)) == (kind, head, body)


def test_an_answer_comes_back(own: Codec, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        answer = acted(rng)
        assert own.unpack_acted(own.pack_acted(answer)) == answer
        data = json.loads(json.dumps(wire.acted_json(answer)))
        assert data["session"] == f"{answer.session:016x}" and data["kind"] == "action"
        assert wire.session_number(data["session"]) == answer.session


def test_bytes_cut_anywhere_are_no_message(own: Codec, seed: int) -> None:
    rng = random.Random(seed)
    whole = wire.pack_observed(observed(rng)._replace(robot="robot"), FLOATS, b"")
    answer = own.pack_acted(acted(rng))
    for size in range(len(whole)):
        with pytest.raises(WireError):
            wire.unpack_observed(whole[:size])
    for size in range(len(answer)):
        with pytest.raises(WireError):
            own.unpack_acted(answer[:size])


def test_garbage_is_a_wire_error_or_a_message(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        data = bytearray(wire.pack_observed(observed(rng), FLOATS, b"1234"))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            wire.unpack_observed(bytes(data))
        except WireError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [(0, 0, "no message"), (2, 9, "version 9"), (3, wire.ACTION, "kind 3")],
)
def test_what_is_wrong_is_named(place: int, value: int, said: str) -> None:
    data = bytearray(wire.pack_observed(Observed("r", 1, 0, 0, None), FLOATS, b""))
    data[place] = value
    with pytest.raises(WireError, match=said):
        wire.unpack_observed(bytes(data))


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(UsageError, match="64 bytes"):
        wire.pack_observed(Observed("é" * 33, 1, 0, 0, None), FLOATS, b"")


@pytest.mark.parametrize("text", ["", "12", "g" * 16, "0x12345678901234", None, 7, "１" * 16])
def test_a_session_that_is_none(text: object) -> None:
    with pytest.raises(WireError, match="16 hex digits"):
        wire.session_number(text)


NO_TEXTS = ["", "[]", "{}", '{"kind": 1, "version": 1}', '{"kind": "open"}', "[" * 100_000]
OTHER_VERSIONS = ['{"kind": "open", "version": 2}', '{"kind": "open", "version": true}']


@pytest.mark.parametrize("text", [*NO_TEXTS, *OTHER_VERSIONS])
def test_a_text_that_is_no_message(text: str) -> None:
    with pytest.raises(WireError):
        wire.read_text(text)


def test_a_refusal_has_a_name_and_a_status() -> None:
    data = wire.refused_json(Refused("stale", "sequence 3", 3))
    assert data["error"] == {"name": "stale", "message": "sequence 3"} and data["sequence"] == 3
    assert all(400 <= status < 600 for status in wire.REFUSALS.values())
