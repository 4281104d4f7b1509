"""A state as float32 columns: what a robot sends when every microsecond counts.

A bitmap says which columns are given, so that an unknown value and a sensor that reads NaN stay two
things: the first is None, the second reaches the breakers as the NaN it is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from wmrt.core.errors import SchemaError, StateError

_COUNT = struct.Struct("<H")
#: At most in a state.
COLUMNS = 65535
FLAGS: dict[Any, float] = {
    **{False: 0.0, "false": 0.0, "False": 0.0},
    **{True: 1.0, "true": 1.0, "True": 1.0},
}
#: No numbers, although `float` takes them.
TEXTS = (bool, str, bytes)
#: Values that mean unknown, as in `wmrt.model.schema`.
_UNKNOWN = (None, "", "unknown")
#: Kinds of fields that have a float32 form.
KINDS = ("numeric", "vector", "category", "flag")


class _Field(NamedTuple):
    name: str
    kind: str
    size: int
    values: tuple[str, ...]


class StateLayout:
    """The columns of one schema, read off its JSON form.

    Numeric fields and vector components are their value in float32, categories the position in
    their list, flags 0 or 1. A schema with an instruction, which is a text, has no such form.

    Attributes:
        size: number of columns.

    Raises:
        SchemaError: a schema with an instruction field, a kind of field that is not known, or more
            columns than a message can count.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        fields = []
        for entry in schema["fields"]:
            kind = entry["kind"]
            if kind not in KINDS:
                raise SchemaError(
                    f"field {entry['name']!r} is of kind {kind!r}, which has no float32 form; send "
                    "such states as msgpack or JSON"
                )
            size = entry["n"] if kind == "vector" else 1
            fields.append(_Field(entry["name"], kind, size, tuple(entry.get("values", ()))))
        self._fields = tuple(fields)
        self._names = frozenset(field.name for field in fields)
        self._positions = {f.name: {v: float(i) for i, v in enumerate(f.values)} for f in fields}
        self.size = sum(field.size for field in fields)
        if self.size > COLUMNS:
            raise SchemaError(
                f"{self.size} columns, of at most {COLUMNS}; send such states as msgpack or JSON"
            )
        self._floats = struct.Struct(f"<{self.size}f")
        self._map_bytes = (self.size + 7) // 8
        self.bytes = _COUNT.size + self._map_bytes + self._floats.size
        self._count, self._every = _COUNT.pack(self.size), (1 << self.size) - 1
        # Without vectors a field is a column, and most columns are plain numbers.
        self._flat = all(field.kind != "vector" for field in fields)
        self._order = tuple(field.name for field in fields)
        self._named = tuple((i, f) for i, f in enumerate(fields) if f.kind in ("category", "flag"))

    @property
    def described(self) -> tuple[tuple[str, int, int, tuple[str, ...], dict[str, float]], ...]:
        """Of each field name, number of its kind, columns, a category's values and {value: column};
        for the codec in C."""
        return tuple(
            (name, KINDS.index(kind), size, values, self._positions[name])
            for name, kind, size, values in self._fields
        )

    def pack(self, state: Mapping[str, Any]) -> bytes:
        """A state as columns. A value that is no number is sent as NaN, which the breakers see.

        Raises:
            StateError: an undeclared key, or a vector of another length.
        """
        if not self._names.issuperset(state):
            extra = sorted(str(key) for key in state if key not in self._names)
            raise StateError(f"{', '.join(extra)}: not in the schema, which has {self._known()}")
        given, columns = self._columns(state) if self._flat else self._all_columns(state)
        bits = given.to_bytes(self._map_bytes, "little")
        return b"".join((self._count, bits, self._pack(columns)))

    def _columns(self, state: Mapping[str, Any]) -> tuple[int, list[float]]:
        """Which are given, and all of them, of a schema without vectors."""
        columns: list[Any] = list(map(state.get, self._order))
        given = self._every
        for at, field in self._named:
            (columns[at],) = self._parts(field, columns[at])
        for at, value in enumerate(columns):
            if type(value) is not float:
                (part,) = self._parts(self._fields[at], value)
                columns[at] = 0.0 if part is None else part
                given -= 0 if part is not None else 1 << at
        return given, columns

    def _all_columns(self, state: Mapping[str, Any]) -> tuple[int, list[float]]:
        given, bit = 0, 1
        columns: list[float] = []
        for field in self._fields:
            for part in self._parts(field, state.get(field.name)):
                given |= 0 if part is None else bit
                columns.append(0.0 if part is None else part)
                bit <<= 1
        return given, columns

    def _pack(self, columns: list[float]) -> bytes:
        try:
            return self._floats.pack(*columns)
        except OverflowError:  # beyond float32: an infinity, as a cast would give
            big = 3.4028235677973366e38  # halfway to the next float32 there would be
            return self._floats.pack(
                *(math.copysign(math.inf, x) if abs(x) >= big else x for x in columns)
            )

    def _parts(self, field: _Field, value: Any) -> tuple[float | None, ...] | list[float | None]:
        if value is None or (isinstance(value, str) and value in _UNKNOWN):
            return (None,) * field.size
        if field.kind == "numeric":
            return (_number(value),)
        if field.kind == "category":
            found = self._positions[field.name].get(value) if isinstance(value, str) else None
            return (-1.0 if found is None else found,)
        if field.kind == "flag":
            try:
                return (FLAGS.get(value, math.nan),)
            except TypeError:  # not hashable
                return (math.nan,)
        try:
            parts = [None if part is None else _number(part) for part in value]
        except TypeError:
            parts = []
        if len(parts) != field.size:
            raise StateError(f"{field.name}: {len(parts)} components given, it has {field.size}")
        return parts

    def unpack(self, data: memoryview) -> dict[str, Any]:
        """The state that `pack` was given, in float32.

        Raises:
            StateError: another number of columns, or bytes too few or too many.
        """
        if len(data) != self.bytes or _COUNT.unpack_from(data)[0] != self.size:
            raise StateError(
                f"{len(data)} bytes of state: this schema has {self.size} columns in {self.bytes} "
                "bytes; read the schema again"
            )
        start = _COUNT.size + self._map_bytes
        given = int.from_bytes(data[_COUNT.size : start], "little")
        columns = self._floats.unpack_from(data, start)
        if not self._flat:
            return self._fields_of(given, columns)
        state: dict[str, Any] = dict(zip(self._order, columns, strict=True))
        for at, (name, kind, _, values) in self._named:
            state[name] = _named(kind, values, columns[at])
        if missing := self._every & ~given:
            for at, name in enumerate(self._order):
                if missing >> at & 1:
                    state[name] = None
        return state

    def _fields_of(self, given: int, columns: tuple[float, ...]) -> dict[str, Any]:
        """The same of a schema with vectors."""
        state: dict[str, Any] = {}
        at = 0
        for name, kind, size, values in self._fields:
            if kind == "numeric":
                state[name] = columns[at] if given >> at & 1 else None
            elif kind == "vector":
                state[name] = [
                    columns[at + i] if given >> at + i & 1 else None for i in range(size)
                ]
            else:
                state[name] = _named(kind, values, columns[at]) if given >> at & 1 else None
            at += size
        return state

    def _known(self) -> str:
        return ", ".join(field.name for field in self._fields)


def _number(value: Any) -> float:
    """A float, NaN for what is no number; bool and text are none."""
    if type(value) is float:
        return value
    if isinstance(value, TEXTS):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return math.inf
    except (TypeError, ValueError):
        return math.nan


def _named(kind: str, values: tuple[str, ...], column: float) -> Any:
    """A category's value or a flag; the number itself where it names neither."""
    if kind == "flag":
        return bool(column) if column in (0.0, 1.0) else column
    place = int(column) if column.is_integer() else -1  # NaN and infinities are no integers
    return values[place] if 0 <= place < len(values) else column
