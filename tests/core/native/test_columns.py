"""Observations in C against those in Python: for every input the same value, or the same error."""

from __future__ import annotations

import gc
import math
import random
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.core.codecs import require_native
from tests.core.pairs import (
    LAYOUTS,
    ROUNDS,
    SCHEMAS,
    Both,
    Text,
    mutated,
    outcome,
    plain_state,
)
from tests.core.test_wire import observed
from tests.model.networks import random_state
from wmrt.core.wire import (
    FLOATS,
    Observed,
    pack_observed,
)
from wmrt.core.wire_state import FLAGS, TEXTS, StateLayout


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
