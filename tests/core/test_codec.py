"""The codec in C against the one in Python: for every input the same value, or the same error."""

from __future__ import annotations

import gc
import math
import random
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import FULL
from tests.core.codecs import require_native
from tests.core.test_wire import acted, observed
from tests.model.networks import random_state, schemas, small_schema
from wmrt.core import codec as chosen
from wmrt.core.codec import VARIABLE, Choice
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.core.wire import (
    FLOATS,
    TRIPPED,
    Acted,
    Observed,
    WireError,
    pack_acted,
    pack_observed,
    unpack_acted,
    unpack_observed,
)
from wmrt.core.wire_state import FLAGS, TEXTS, StateLayout

ROUNDS = 20_000 if FULL else 2_000
LAYOUTS = [
    StateLayout(schema.to_json())
    for schema in (small_schema(), *schemas().values())
    if not schema.instruction
]
SCHEMAS = [s for s in (small_schema(), *schemas().values()) if not s.instruction]


class Handed:
    """A function of Python, and how often it was asked."""

    def __init__(self, does: Callable[[Any], Any]) -> None:
        self.does, self.count = does, 0

    def __call__(self, given: Any) -> Any:
        self.count += 1
        return self.does(given)


class Both:
    """Columns of a layout: ``native``, and what Python does instead."""

    def __init__(self, layout: StateLayout) -> None:
        def write(seen: Observed) -> bytes:
            return pack_observed(seen, FLOATS, layout.pack(seen.state))

        def read(data: bytes) -> Observed:
            kind, head, body = unpack_observed(data)
            if kind != FLOATS:
                raise WireError("another encoding")
            return head._replace(state=layout.unpack(body))

        self.write, self.read = Handed(write), Handed(read)
        made = require_native().Columns
        self.native = made(Observed, layout.described, FLAGS, TEXTS, self.write, self.read)


def outcome(does: Callable[[Any], Any], given: Any) -> tuple[Any, ...]:
    """A value down to the sign of a zero, or the error."""
    try:
        return "gives", repr(does(given))
    except Exception as error:
        return "raises", type(error), str(error)


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A message with bits flipped, bytes replaced, cut off, or more of them."""
    changed = bytearray(data)
    kind = rng.randrange(5)
    if kind == 0:
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        changed[rng.randrange(len(changed))] = rng.choice([0, 1, 2, 3, 127, 128, 255])
    elif kind == 2:
        del changed[rng.randrange(len(changed)) :]
    elif kind == 3:
        changed += rng.randbytes(rng.randrange(1, 9))
    else:
        at = rng.randrange(len(changed))
        changed[at : at + 8] = rng.randbytes(rng.randrange(12))
    return bytes(changed)


class Text(str):
    """One that compares as it likes."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "unknown" or str.__eq__(self, other)


class Number:
    """What only `float` makes a number of, or not."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __float__(self) -> float:
        if isinstance(self.value, Exception):
            raise self.value
        return float(self.value)

    def __repr__(self) -> str:
        return "Number"


ODD: list[Any] = [
    *(None, "", "unknown", "fast", "true", "False", True, False, 0, 1, 7, -3, 10**400, -(10**400)),
    *(0.0, -0.0, 1.0, 3.5, math.nan, math.inf, -math.inf, 1e39, -1e300, 5e-324),
    *(3.4028235677973366e38, 3.4028235677973365e38, -3.4028235677973366e38, 2**24 + 1),
    *(np.float32(1.5), np.float64(2.5), np.int64(4), np.True_, np.array(2.0), np.zeros(3)),
    *(b"1", bytearray(b"1"), [], (), {}, [1.0, None, "x"], (1.0, 2.0, 3.0), [None] * 3),
    *([1.0, 2], [np.float32(1), True, b""], range(3), "abc", Text("x"), object, 1j),
    *([1.0] * 4, (0.5,) * 9, [None] * 33, [3.5]),
    *(Number(1.25), Number(ValueError("no")), Number(OverflowError("no")), Number("nan")),
]


def odd_state(rng: random.Random, layout: StateLayout, state: dict[Any, Any]) -> dict[Any, Any]:
    """A state with odd values, undeclared names, or without some."""
    names = [name for name, *_ in layout.described]
    changed = dict(state)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.choice(names)] = rng.choice(ODD)
    for name, kind, _, values, _ in layout.described:
        if kind == 2 and rng.random() < 0.3:
            changed[name] = rng.choice([*values, "none such"])
    if rng.random() < 0.3:
        changed.pop(rng.choice(names), None)
    if rng.random() < 0.1:
        changed[rng.choice(["fuel", 7, None, ("a",)])] = 1.0
    return changed


def plain_state(rng: random.Random, layout: StateLayout) -> dict[str, Any]:
    """Every kind of value that Python's own types have."""
    made: dict[str, Any] = {
        0: lambda size, values: rng.choice([rng.gauss(0, 1e3), rng.randrange(99), None]),
        1: lambda size, values: [rng.choice([rng.gauss(0, 9), None]) for _ in range(size)],
        2: lambda size, values: rng.choice([*values, None]),
        3: lambda size, values: rng.choice([True, False, None, "unknown"]),
    }  # type: ignore[dict-item]
    return {name: made[kind](size, values) for name, kind, size, values, _ in layout.described}  # type: ignore[index]


def test_the_plain_case_is_c_s_own(seed: int) -> None:
    rng = random.Random(seed)
    for layout in LAYOUTS:
        both = Both(layout)
        for _ in range(20):
            head = observed(rng)._replace(state=plain_state(rng, layout))
            data = both.native.write(head)
            assert data == both.write.does(head)
            assert repr(both.native.read(data)) == repr(both.read.does(data))
            assert type(both.native.read(data)) is Observed
        assert both.write.count == both.read.count == 0
    answers, pack, unpack = both_answers()
    for _ in range(100):
        answer = acted(rng)
        data = answers.pack(answer)
        assert data == pack.does(answer) and answers.unpack(data) == answer
        assert type(answers.unpack(data)) is Acted
    assert pack.count == unpack.count == 0


def test_states_that_are_odd_become_the_same_bytes(seed: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    for schema, layout in zip(SCHEMAS, LAYOUTS, strict=True):
        both = Both(layout)
        for _ in range(ROUNDS // 4):
            state = odd_state(rng, layout, random_state(numbers, schema))
            head = observed(rng)._replace(state=state)
            assert outcome(both.native.write, head) == outcome(both.write.does, head), head


HEADS: dict[str, list[Any]] = {
    "robot": ["é" * 33, "\ud800", "", Text("r"), 7, "x" * 64, "x" * 65, b"r"],
    "session": [-1, 2**64, 2**64 - 1, True, 1.0, None, np.int64(3)],
    "epoch": [-1, 2**32, 2**32 - 1, False, "1"],
    "sequence": [-1, 2**64, 2**63, None],
    "captured_ns": [-(2**63), 2**63 - 1, 2**63, -1, 1.5, np.int64(3)],
    "sent_ns": [-(2**63), 2**63, True],
    "state": [None, [], "x", (("a", 1),), SimpleNamespace()],
}


def test_heads_that_are_odd_become_the_same_bytes(seed: int) -> None:
    rng = random.Random(seed)
    both = Both(LAYOUTS[0])
    for name, values in HEADS.items():
        for value in values:
            head = observed(rng)._replace(**{"state": {}, name: value})
            assert outcome(both.native.write, head) == outcome(both.write.does, head), head
    for no_head in (None, (), (1,) * 7, [1] * 7, "r"):
        assert outcome(both.native.write, no_head) == outcome(both.write.does, no_head)


def test_bytes_that_are_odd_are_the_same_observation(seed: int) -> None:
    rng = random.Random(seed)
    for layout in LAYOUTS:
        both = Both(layout)
        for _ in range(ROUNDS // 4):
            head = observed(rng)._replace(state=plain_state(rng, layout))
            data = mutated(rng, both.native.write(head))
            assert outcome(both.native.read, data) == outcome(both.read.does, data), data.hex()
            body = rng.randbytes(layout.bytes - 2)
            data = pack_observed(head, FLOATS, layout.pack({})[:2] + body)
            assert outcome(both.native.read, data) == outcome(both.read.does, data), data.hex()
        for size in range(len(data) + 1):
            assert outcome(both.native.read, data[:size]) == outcome(both.read.does, data[:size])


def both_answers() -> tuple[Any, Handed, Handed]:
    pack, unpack = Handed(pack_acted), Handed(unpack_acted)
    return require_native().Answers(Acted, TRIPPED, pack, unpack), pack, unpack


ANSWERS: dict[str, list[Any]] = {
    "robot": ["é" * 200, "\udfff", "x" * 255, "x" * 256, Text("r"), None],
    "session": [-1, 2**64, True],
    "step": [-1, 2**64, 1.5],
    "action": [(), (1, 2), (1e39,), (math.inf, -math.nan), [0.5], (np.float32(1),), (0.1,) * 300],
    "source": ["", "x" * 256, 3],
    "tripped": [(8,), (-1,), (0, 0, 7), [1], (True,), (1.0,), range(3)],
    "late": [0, 1, 2, 256, None, np.True_],
    "skipped": [-1, 2**32, 2**40, 2**32 - 1],
    "captured_ns": [-(2**63), 2**63, 0.5],
    "queue_ns": [-5, 2**63, None],
    "policy_ns": [-(2**63), -1],
    "act_ns": [2**63 - 1, -(2**63) - 1],
}


def test_answers_that_are_odd_become_the_same_bytes(seed: int) -> None:
    rng = random.Random(seed)
    answers, pack, _ = both_answers()
    for name, values in ANSWERS.items():
        for value in values:
            answer = acted(rng)._replace(**{name: value})
            want = outcome(pack.does, answer)
            assert outcome(answers.pack, answer) == want, answer
            if want[0] == "raises":
                assert outcome(answers.frame, answer) == want
            else:
                assert answers.frame(answer).endswith(answers.pack(answer))
    for none in (None, (), (1,) * 15, "x"):
        assert outcome(answers.pack, none) == outcome(pack.does, none)


def test_bytes_that_are_odd_are_the_same_answer(seed: int) -> None:
    rng = random.Random(seed)
    answers, _, unpack = both_answers()
    for _ in range(ROUNDS):
        data = mutated(rng, pack_acted(acted(rng)))
        assert outcome(answers.unpack, data) == outcome(unpack.does, data), data.hex()
        data = b"WM\x01\x03" + rng.randbytes(rng.randrange(200))
        assert outcome(answers.unpack, data) == outcome(unpack.does, data), data.hex()
    for none in (None, "WM", bytearray(b"WM")):
        assert outcome(answers.unpack, none) == outcome(unpack.does, none)


def calls(seed: int) -> dict[str, Callable[[], Any]]:
    """Every function, as it goes well and as it does not."""
    rng, native = random.Random(seed), require_native()
    layout = LAYOUTS[0]
    both, (answers, _, _) = Both(layout), both_answers()
    head = observed(rng)._replace(state=plain_state(rng, layout))
    message, answer = both.native.write(head), acted(rng)
    packed, framed = answers.pack(answer), answers.frame(answer)
    sent = native.masked(message)
    body = len(message) - layout.bytes
    other = message[:body] + b"\xff\xff" + message[body + 2 :]
    long = observed(rng)._replace(robot="x" * 65, state=head.state)
    return {
        "write": lambda: both.native.write(head),
        "write, refused": lambda: outcome(both.native.write, long),
        "read": lambda: both.native.read(message),
        "read, refused": lambda: outcome(both.native.read, message[:-1]),
        "read, no name": lambda: outcome(both.native.read, message[:41] + b"\xff" + message[42:]),
        "read, another schema": lambda: outcome(both.native.read, other),
        "take": lambda: both.native.take(sent, 0, 10_000),
        "take, none": lambda: both.native.take(sent[:-1], 0, 10_000),
        "pack": lambda: answers.pack(answer),
        "pack, refused": lambda: outcome(answers.pack, answer._replace(action=(1e39,))),
        "frame": lambda: answers.frame(answer),
        "unpack": lambda: answers.unpack(packed),
        "unpack, refused": lambda: outcome(answers.unpack, packed[:-1]),
        "unpack, no text": lambda: outcome(answers.unpack, packed[:75] + b"\xff" + packed[76:]),
        "masked": lambda: native.masked(message),
        "payload": lambda: native.payload(framed),
        "payload, none": lambda: native.payload(sent),
        "made": lambda: Both(layout),
    }


@pytest.mark.parametrize("name", list(calls(0)) if chosen.load()[0] else [])
def test_nothing_is_left_behind(name: str, seed: int) -> None:
    """100,000 calls keep neither memory nor a reference to what every call uses; fewer of those
    that Python words an error for."""
    call = calls(seed)[name]
    shared: tuple[Any, ...] = (None, True, False, Observed, Acted, TRIPPED, FLAGS, StateLayout)
    count = 5_000 if "," in name or name == "made" else 100_000

    def used() -> list[int]:
        gc.collect()
        return [tracemalloc.get_traced_memory()[0], *map(sys.getrefcount, shared)]

    for _ in range(100):
        call()
    tracemalloc.start()
    try:
        call()
        before = used()
        for _ in range(count):
            call()
        grown = [after - first for after, first in zip(used(), before, strict=True)]
    finally:
        tracemalloc.stop()
    # The smallest object has 24 bytes; other threads of the process may take a little, too.
    assert grown[0] < 8 * count and max(grown[1:]) < count // 10, grown


def test_one_that_its_own_reader_holds_is_collected() -> None:
    """A service's decoder holds its columns, which hold the decoder's method."""
    native = require_native()

    class Owner:
        def __init__(self) -> None:
            layout = LAYOUTS[0].described
            self.columns = native.Columns(Observed, layout, FLAGS, TEXTS, self.other, self.other)

        def other(self, given: Any) -> Any: ...

    owner = Owner()
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_a_wrong_call_is_an_error_of_python_s() -> None:
    native, both = require_native(), Both(LAYOUTS[0])
    for wrong in (
        lambda: native.masked("text"),
        lambda: native.payload(None),
        lambda: both.native.take(b"", 0),
        lambda: both.native.take("", 0, 1),
        lambda: both.native.take(b"", None, 1),
        lambda: native.Columns(Observed, ((1,),), FLAGS, TEXTS, None, None),
        lambda: native.Columns(Observed, (1,), FLAGS, TEXTS, None, None),
        lambda: native.Columns(int, (), FLAGS, TEXTS, None, None),
        lambda: native.Answers(7, TRIPPED, None, None),
        lambda: native.Answers(Acted, None, None, None),
    ):
        with pytest.raises(TypeError):
            wrong()
    for kind, size in ((9, 1), (-1, 1), (0, 2), (1, -1), (1, 70_000)):
        with pytest.raises(ValueError):
            native.Columns(Observed, (("a", kind, size, (), {}),), FLAGS, TEXTS, None, None)
    assert both.native.take(b"\x82\x80", -5, 1) is both.native.take(b"", 2**40, 1) is None


def test_an_interruption_is_not_taken_for_a_value() -> None:
    class Interrupted:
        def __float__(self) -> float:
            raise KeyboardInterrupt

    layout = LAYOUTS[0]
    name = next(name for name, kind, *_ in layout.described if kind == 0)
    both = Both(layout)
    with pytest.raises(KeyboardInterrupt):
        both.native.write(Observed("r", 1, 0, 0, {name: Interrupted()}))
    assert both.write.count == 0


def test_the_codec_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "python")
    assert chosen.codec().choice == Choice("python", "python") and chosen.codec().native is None
    require_native()
    monkeypatch.setenv(VARIABLE, "c")
    assert chosen.codec().choice == Choice("c", "c") and chosen.codec().native is not None
    monkeypatch.delenv(VARIABLE)
    assert chosen.codec().choice == Choice("auto", "c")
    assert chosen.codec() is chosen.codec()


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("cannot import name '_codec' from 'wmrt.core' (/a/b.py)", "not built for this Python"),
        (
            "/a/_codec.abi3.so: undefined symbol: PyThing",
            "does not load: undefined symbol: PyThing",
        ),
    ],
)
def test_without_the_module_in_c(raised: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` says why it is Python, ``c`` how to build it, and neither where anything lies."""

    class Finder:
        def find_spec(self, name: str, *more: Any) -> None:
            if name == "wmrt.core._codec":
                raise ImportError(raised)

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "wmrt.core._codec", raising=False)
    monkeypatch.delattr("wmrt.core._codec", raising=False)
    chosen._made.cache_clear()
    try:
        monkeypatch.setenv(VARIABLE, "auto")
        requested, resolved, reason = chosen.codec().choice
        assert (requested, resolved) == ("auto", "python") and said in reason
        monkeypatch.setenv(VARIABLE, "c")
        with pytest.raises(UnsupportedError, match=r"apt install gcc python3-dev") as refused:
            chosen.codec()
        assert said in str(refused.value) and "/" not in str(refused.value) + reason
    finally:
        chosen._made.cache_clear()


@pytest.mark.parametrize("name", ["", "C", "rust"])
def test_a_codec_that_there_is_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(UsageError, match=r"WMRT_CODEC=.*auto, c, python"):
        chosen.codec()
