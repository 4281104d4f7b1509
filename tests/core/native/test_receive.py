"""An answer waited for, read and unpacked in one call: the same as what Python unpacks."""

from __future__ import annotations

import random
import signal
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.core.codecs import require_native
from tests.core.pairs import ROUNDS, both_answers, mutated, outcome
from tests.core.test_wire import acted
from wmrt.client.frames import head as head_of
from wmrt.core.wire import pack_acted


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_what_a_socket_brings_is_the_same_answer(
    pair: tuple[socket.socket, socket.socket], seed: int
) -> None:
    """Or the same bytes, of anything else than one whole frame of an answer."""
    rng, (ours, theirs) = random.Random(seed), pair
    answers, _, unpack = both_answers()
    receive, known = partial(received, answers), 0
    for _ in range(ROUNDS):
        answer = acted(rng)
        data = rng.choice([pack_acted(answer), mutated(rng, pack_acted(answer))])
        wire = head_of(len(data)) + data
        kind = rng.choice(["whole", "whole", "whole", "cut", "two", "masked", "text"])
        if kind != "whole":
            masked_one = require_native().masked(data)
            odd = {"cut": wire[:-1], "two": wire * 2, "masked": masked_one, "text": b"\x81\x01x"}
            wire = odd[kind]
        theirs.sendall(wire)
        want: Any = outcome(unpack.does, data) if kind == "whole" else ("raises",)
        if want[0] == "raises":
            assert receive(ours.fileno()) == wire
        else:
            known += 1
            assert outcome(receive, ours.fileno()) == want
    assert known > ROUNDS // 10 and unpack.count == 0


def received(answers: Any, file: int) -> Any:
    return answers.receive(file, 10_000)


def test_a_socket_that_brings_no_answer(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    answers, _, _ = both_answers()
    began = time.monotonic()
    assert answers.receive(ours.fileno(), 0) is answers.receive(ours.fileno(), 20) is None
    assert time.monotonic() - began >= 0.02
    theirs.sendall(bytes(20_000))
    assert [len(answers.receive(ours.fileno(), 10_000)) for _ in range(2)] == [16_384, 3_616]

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            answers.receive(ours.fileno(), 60_000)
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert answers.receive(ours.fileno(), 2**40) is None
    finally:
        signal.signal(signal.SIGALRM, before)
    theirs.close()
    assert answers.receive(ours.fileno(), 10_000) == b""
    with open("/dev/null") as none, pytest.raises(OSError, match="Socket operation"):
        answers.receive(none.fileno(), 10_000)
    for wrong in ((), (1,), ("", 1), (1, None), (1, 2, 3)):
        with pytest.raises(TypeError):
            answers.receive(*wrong)
