"""One state to integers: the scalar path of the control loop.

The tolerant form never raises, whatever objects come in: what cannot be read is unknown and is
reported. A state of plain floats and strings takes the short way through `Encoder`; everything
else is looked at by the functions below it.
"""

from __future__ import annotations

import array
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from wmrt.model.encoded import Raw
from wmrt.model.fields import Column, Field
from wmrt.model.issues import Issue, plain
from wmrt.model.readings import (
    FLAG_TEXTS,
    attempt,
    to_bit,
    to_float,
    to_instruction,
    to_list,
    to_text,
)
from wmrt.model.rounding import POWERS, ROUNDER, UNKNOWN, exact_q, tie_limit

#: Undeclared keys reported one by one; the rest are counted in one more issue.
MAX_EXTRA = 16

_MISSING: Any = object()
_NAN = math.nan


class Encoder:
    """The tables of one schema, laid out for speed."""

    def __init__(
        self, fields: Mapping[str, Field], columns: Sequence[Column], max_unknown: int | None
    ) -> None:
        self._names = tuple(fields)
        self._known = frozenset(fields)
        self._declared = ", ".join(self._names[:24]) + (", ..." if len(fields) > 24 else "")
        self._columns = tuple(columns)
        self._max_unknown = max_unknown
        self._numeric = tuple(
            (
                i, POWERS[c.decimals], float(c.q_low), float(c.q_high),
                tie_limit(c.q_low, c.q_high), tuple(map(float, c.bounds)),
            )
            for i, c in enumerate(columns) if c.numeric
        )  # fmt: skip
        self._missing = tuple(Issue(c.name, "missing", None, c.allowed) for c in columns)
        self._empty = tuple(Issue(c.name, "empty", None, c.allowed) for c in columns)
        plan = []
        first = 0
        for name, field in fields.items():
            codes = {value: k for k, value in enumerate(field.values, start=1)}
            plan.append((name, field.kind, first, field.n, codes))
            first += field.n
        self._plan = tuple(plan)

    def run(self, state: object) -> Raw:
        """Encode tolerantly. Never raises."""
        count = len(self._columns)
        raw = Raw([UNKNOWN] * count, [0] * count, [0.0] * count, {}, [])
        mapping = state if type(state) is dict else attempt(_as_dict, state)
        given = None if mapping is None else attempt(self._lookup, mapping)
        if mapping is None or given is None:
            allowed = "a mapping of field names to values"
            raw.notes = dict(enumerate(self._missing))
            raw.tail.append(Issue("", "container", plain(state), allowed))
            return raw
        readings: list[float] = []
        self._read(given, readings, raw)
        self._round(readings, raw)
        absent = sum([value is _MISSING for value in given])
        if len(mapping) != len(given) - absent:
            self._extras(mapping, raw)
        return raw

    def _lookup(self, state: dict[Any, Any]) -> list[Any]:
        """The value of every field in order, `_MISSING` where there is none."""
        return [state.get(name, _MISSING) for name in self._names]

    def _read(self, given: list[Any], readings: list[float], raw: Raw) -> None:
        """Sort values by kind: numbers to ``readings``, one per numeric column, NaN if noted."""
        q, codes, notes = raw.q, raw.codes, raw.notes
        for value, (name, kind, i, n, table) in zip(given, self._plan, strict=True):
            if kind == "numeric":
                readings.append(value if type(value) is float else self._number(value, i, notes))
            elif kind == "category":
                code = table.get(value) if type(value) is str else None
                if code is None:
                    code = self._category(value, i, table, notes)
                if code:
                    q[i] = codes[i] = code
            elif kind == "flag":
                code = value + 1 if type(value) is bool else self._flag(value, i, notes)
                if code:
                    q[i] = codes[i] = code
            elif kind == "vector":
                readings.extend(self._vector(value, name, i, n, notes))
            else:
                raw.instruction = self._instruction(value, name, raw)

    def _round(self, readings: list[float], raw: Raw) -> None:
        """Readings to q, code and value. Mirrors `wmrt.model.rounding.round_array`."""
        q_out, codes, values = raw.q, raw.codes, raw.values
        cast = array.array("f", readings)  # C's double to float: nearest even, overflow to inf
        plan = zip(cast, readings, self._numeric, strict=True)
        for x, given, (i, scale, low, high, limit, bounds) in plan:
            y = x * scale
            if low <= y <= high:
                q: float = y + ROUNDER - ROUNDER
                if not -limit < y - q < limit:
                    q = exact_q(x, self._columns[i].decimals)
            elif i in raw.notes:  # stands for a value already noted as unreadable
                continue
            else:
                edge = self._edge(x, y, i, given, raw)
                if edge is None:
                    continue
                q = edge
            q_out[i] = q
            codes[i] = bisect_right(bounds, q) + 1
            values[i] = q / scale

    def _edge(self, x: float, y: float, i: int, given: float, raw: Raw) -> int | None:
        """q of a float32 reading ``x`` outside the range; None when it is not finite."""
        column = self._columns[i]
        if not math.isfinite(x):
            raw.notes[i] = Issue(column.name, "nonfinite", given, column.allowed)
            return None
        low, high = column.q_low, column.q_high
        q = low - 1 if y < low - 2 else high + 1 if y > high + 2 else exact_q(x, column.decimals)
        if low <= q <= high:
            return q
        raw.notes[i] = Issue(column.name, "range", given, column.allowed)
        return low if q < low else high

    def _number(self, value: Any, i: int, notes: dict[int, Issue]) -> float:
        """A reading of any type as float64; NaN and a note when it is none."""
        if value is _MISSING:
            notes[i] = self._missing[i]
            return _NAN
        if value is None or (type(value) is str and not value):
            notes[i] = self._empty[i]
            return _NAN
        reading = attempt(to_float, value)
        if reading is None:
            self._note(i, "type", value, notes)
            return _NAN
        return reading

    def _text(self, value: Any, i: int, notes: dict[int, Issue]) -> Any:
        """A category's or flag's value as text, None if it has none; _MISSING, with a note, if it
        is absent or says that it is unknown."""
        text = None if value is _MISSING else attempt(to_text, value)
        if value is _MISSING or value is None or text in ("", "unknown"):
            notes[i] = (self._missing if value is _MISSING else self._empty)[i]
            return _MISSING
        return text

    def _category(self, value: Any, i: int, table: dict[str, int], notes: dict[int, Issue]) -> int:
        """Code of a category value that is no plain known string; 0 and a note if unknown."""
        text = self._text(value, i, notes)
        if text is _MISSING:
            return 0
        code = 0 if text is None else table.get(text, 0)
        if not code:
            self._note(i, "type" if text is None else "unseen", value, notes)
        return code

    def _flag(self, value: Any, i: int, notes: dict[int, Issue]) -> int:
        """Code of a flag that is no plain bool; 0 and a note if unknown."""
        text = self._text(value, i, notes)
        if text is _MISSING:
            return 0
        if text is not None:
            code = FLAG_TEXTS.get(text, 0)
            if not code:
                self._note(i, "unseen", value, notes)
            return code
        number = attempt(to_bit, value)
        if number in (0.0, 1.0):
            return int(number) + 1
        kind = "type" if number is None else "unseen" if math.isfinite(number) else "nonfinite"
        self._note(i, kind, value, notes)
        return 0

    def _vector(
        self, value: Any, name: str, first: int, n: int, notes: dict[int, Issue]
    ) -> list[float]:
        """n readings; a wrong container or length makes all of them NaN, each with a note."""
        if value is _MISSING or value is None or (type(value) is str and not value):
            source = self._missing if value is _MISSING else self._empty
            notes.update((i, source[i]) for i in range(first, first + n))
            return [_NAN] * n
        parts = attempt(to_list, value)
        if parts is None or len(parts) != n:
            kind = "type" if parts is None else "length"
            allowed = f"{n} numbers, each {self._columns[first].allowed[2:]}"
            shown = plain(value)
            for i in range(first, first + n):
                notes[i] = Issue(self._columns[i].name, kind, shown, allowed)
            return [_NAN] * n
        return [
            part if type(part) is float else self._number(part, i, notes)
            for i, part in enumerate(parts, start=first)
        ]

    def _instruction(self, value: Any, name: str, raw: Raw) -> str | None:
        """Text of the instruction; None when there is none, with an issue when it is no text."""
        if value is _MISSING or value is None:
            return None
        text = attempt(to_instruction, value)
        if text is None:
            raw.tail.append(Issue(name, "type", plain(value), "a text, or None"))
        return text or None

    def _note(self, i: int, kind: str, value: object, notes: dict[int, Issue]) -> None:
        notes[i] = Issue(self._columns[i].name, kind, plain(value), self._columns[i].allowed)

    def _extras(self, state: dict[Any, Any], raw: Raw) -> None:
        """Report undeclared keys."""
        found: list[str] = []
        for key in state:
            try:
                declared = key in self._known
            except Exception:  # a key's own hash or comparison may raise anything
                declared = False
            if not declared:
                found.append(str(plain(key)))
            if len(found) > MAX_EXTRA:
                break
        raw.tail += [Issue(key, "extra", key, self._declared) for key in found[:MAX_EXTRA]]
        if len(found) > MAX_EXTRA:
            raw.tail.append(Issue("...", "extra", f"more than {MAX_EXTRA} keys", self._declared))

    def issues(self, raw: Raw) -> tuple[Issue, ...]:
        """All issues of an encoded state, in order."""
        if not raw.notes and not raw.tail:
            return ()
        out: list[Issue] = []
        absent: set[str] = set()
        for i, note in sorted(raw.notes.items()):
            out.append(note)
            if raw.codes[i] == 0:
                if self._columns[i].required:
                    out.append(Issue(note.field, "required", note.kind, note.allowed))
                else:
                    absent.add(self._columns[i].field)
        out += raw.tail
        if self._max_unknown is not None and len(absent) > self._max_unknown:
            out.append(Issue("", "max_unknown", len(absent), f"at most {self._max_unknown}"))
        return tuple(out)


def _as_dict(state: object) -> dict[Any, Any] | None:
    return dict(state) if isinstance(state, Mapping) else None
