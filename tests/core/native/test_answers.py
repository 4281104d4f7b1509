"""Answers in C against those in Python: for every input the same value, or the same error."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from tests.core.pairs import (
    ROUNDS,
    Text,
    both_answers,
    mutated,
    outcome,
)
from tests.core.test_wire import acted
from wmrt.core.wire import (
    pack_acted,
)

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
