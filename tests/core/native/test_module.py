"""The module in C as a whole: what is its own, what it is given wrongly, what it leaves behind."""

from __future__ import annotations

import gc
import random
import socket
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.core.codecs import require_native
from tests.core.native.test_receive import received
from tests.core.pairs import (
    LAYOUTS,
    Both,
    both_answers,
    outcome,
    plain_state,
)
from tests.core.test_wire import acted, observed
from wmrt.core import codec as chosen
from wmrt.core.wire import (
    TRIPPED,
    Acted,
    Observed,
)
from wmrt.core.wire_state import FLAGS, TEXTS, StateLayout


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
    big = sys.maxsize  # three of them sum to less than nothing, and with a fourth to a few
    for sizes in ((big, big, 4), (1, big, big, 5), (65_000, 536)):
        fields = tuple((f"v{i}", 1, size, (), {}) for i, size in enumerate(sizes))
        with pytest.raises(ValueError, match="65535"):
            native.Columns(Observed, fields, FLAGS, TEXTS, None, None)
    assert both.native.take(b"\x82\x80", -5, 1) is both.native.take(b"", 2**40, 1) is None


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

    def brought(wire: bytes) -> Any:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.send(wire)
            return answers.receive(ours.fileno(), 10_000)

    return {
        "receive, an answer": lambda: brought(framed),
        "receive, bytes": lambda: brought(packed),
        "receive, no socket": lambda: outcome(partial(received, answers), 10**6),
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
