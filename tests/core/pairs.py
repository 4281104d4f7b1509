"""Messages of the codec in C and in Python, side by side: both are held to the same."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import msgspec

from tests.conftest import FULL
from tests.core.codecs import require_native
from tests.model.networks import schemas, small_schema
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


def both_answers() -> tuple[Any, Handed, Handed]:
    pack, unpack = Handed(pack_acted), Handed(unpack_acted)
    return require_native().Answers(Acted, TRIPPED, pack, unpack), pack, unpack


def outcome(does: Callable[[Any], Any], given: Any) -> tuple[Any, ...]:
    """A value down to the sign of a zero, or the error."""
    try:
        value = does(given)
    except Exception as error:
        return "raises", type(error), str(error)
    return "gives", *shown(value)


def shown(value: Any) -> tuple[str, list[tuple[int, bytes]]]:
    """A value as text, and the extensions in it, of which the text tells nothing."""
    return _EXTENSION.sub("Ext", repr(value)), extensions(value)


#: Where it lies, not what it is.
_EXTENSION = re.compile(r"<msgspec\.msgpack\.Ext object at 0x[0-9a-f]+>")


def extensions(value: Any) -> list[tuple[int, bytes]]:
    """msgpack's extensions within a value, in order."""
    if isinstance(value, msgspec.msgpack.Ext):
        return [(value.code, bytes(value.data))]
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    if not isinstance(parts, list | tuple):
        return []
    return [found for part in parts for found in extensions(part)]


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


def plain_state(rng: random.Random, layout: StateLayout) -> dict[str, Any]:
    """Every kind of value that Python's own types have."""
    made: dict[str, Any] = {
        0: lambda size, values: rng.choice([rng.gauss(0, 1e3), rng.randrange(99), None]),
        1: lambda size, values: [rng.choice([rng.gauss(0, 9), None]) for _ in range(size)],
        2: lambda size, values: rng.choice([*values, None]),
        3: lambda size, values: rng.choice([True, False, None, "unknown"]),
    }  # type: ignore[dict-item]
    return {name: made[kind](size, values) for name, kind, size, values, _ in layout.described}  # type: ignore[index]
