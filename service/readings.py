"""A robot's last observation for people: every field of the schema, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wmrt.model.issues import plain
from wmrt.service.places import Seen
from wmrt.service.plain import plain as as_json
from wmrt.service.settings import ServeSettings

#: Longest text of an instruction that is told.
TEXT = 200


class Readings:
    """Tells states of one schema.

    Args:
        schema: as `wmrt.model.schema.StateSchema`.
        settings: how old an observation may be.
    """

    def __init__(self, schema: Any, settings: ServeSettings) -> None:
        self._schema = schema
        self._limits = {} if settings.clock == "step" else _limits(schema, settings.max_age)

    def read(self, seen: Seen, suspects: Mapping[str, str]) -> dict[str, Any]:
        """Plain data: ``values``, one per column as it was given; ``flags``, names of columns and
        fields to what is wrong with them: kinds of `wmrt.model.issues.Issue`, ``stale``, and what
        the prediction monitor found (``suspects``: ``frozen``, ``rise``, ``fall``); ``extra``, keys
        that the schema does not know; ``whole``, what is wrong with the state itself.
        """
        state = seen.observed.state
        _, issues = self._schema.quantize(state)
        flags: dict[str, list[str]] = {}
        extra: list[str] = []
        whole: list[str] = []
        for issue in issues:
            if issue.kind == "extra":
                extra.append(issue.field[:80])
            elif issue.field:
                flags.setdefault(issue.field, []).append(issue.kind)
            else:
                whole.append(issue.message[:300])
        values = state if isinstance(state, Mapping) else {}
        for name, limit in self._limits.items():
            stale = seen.age_ns is not None and seen.age_ns > limit
            if stale and values.get(name) is not None:
                flags.setdefault(name, []).append("stale")
        for name, kind in suspects.items():
            flags.setdefault(name, []).append(kind)
        text = self._schema.instruction
        told = {
            "values": [_reading(values, column) for column in self._schema.columns],
            "instruction": None if text is None else str(values.get(text) or "")[:TEXT],
            "flags": flags,
            "extra": extra,
            "whole": whole,
            "age_ms": None if seen.age_ns is None else seen.age_ns / 1e6,
        }
        return as_json(told)  # type: ignore[no-any-return]


def _limits(schema: Any, general: float | None) -> dict[str, int]:
    """Field to the age that it may have, ns; of fields that may not have any."""
    found = {}
    for name, field in schema.fields.items():
        limits = [limit for limit in (general, field.max_age) if limit is not None]
        if limits:
            found[name] = round(min(limits) * 1e9)
    return found


def _reading(state: Mapping[str, Any], column: Any) -> Any:
    """A column's value, small and plain; a vector's component if it has so many."""
    value = state.get(column.field)
    if column.name != column.field and isinstance(value, Sequence) and not isinstance(value, str):
        index = int(column.name[len(column.field) + 1 : -1])
        value = value[index] if index < len(value) else None
    return plain(value)
