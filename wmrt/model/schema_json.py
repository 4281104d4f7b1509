"""The JSON form of a schema. Strict: a key that is unknown, repeated or missing is an error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from wmrt.core.errors import SchemaError
from wmrt.model.field_checks import Knots
from wmrt.model.fields import (
    Column,
    Field,
    category,
    flag,
    instruction,
    numeric,
    vector,
)
from wmrt.model.rounding import uniform_knots

#: Version of the JSON form; part of the content hash.
VERSION = 1

_MAKERS: dict[str, Any] = {
    "numeric": numeric,
    "vector": vector,
    "category": category,
    "flag": flag,
    "instruction": instruction,
}
_NUMBER_OPTIONS = {"decimals", "buckets", "required", "max_age", "knots"}
#: kind -> (keys that must be given, keys that may be), besides name and kind.
_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "numeric": ({"unit", "low", "high"}, _NUMBER_OPTIONS),
    "vector": ({"n", "unit", "low", "high"}, _NUMBER_OPTIONS),
    "category": ({"values"}, {"required", "max_age"}),
    "flag": (set(), {"required", "max_age"}),
    "instruction": (set(), set()),
}


def dump(
    fields: Mapping[str, Field], neutral: Sequence[float], max_unknown: int | None, name: str
) -> dict[str, Any]:
    """A schema as JSON types."""
    return {
        "version": VERSION,
        "name": name,
        "neutral": list(neutral),
        "max_unknown": max_unknown,
        "fields": [{"name": key, **field.to_json()} for key, field in fields.items()],
    }


def load(
    source: str | PathLike[str] | Mapping[str, Any],
) -> tuple[dict[str, Field], dict[str, Any]]:
    """Fields, and the other arguments of `StateSchema`, from a dict, a JSON text or a file."""
    data = source if isinstance(source, Mapping) else _parse(source)
    _check_keys("schema", data, {"version", "neutral", "fields"}, {"name", "max_unknown"})
    version = data["version"]
    if version is True or version != VERSION:
        raise SchemaError(f"schema: version {version!r} is not known; this wmrt reads {VERSION}")
    if not isinstance(data["fields"], (list, tuple)):
        raise SchemaError("schema: fields must be a list of objects, in column order")
    fields: dict[str, Field] = {}
    for entry in data["fields"]:
        name, field = _field(entry)
        if name in fields:
            raise SchemaError(f"schema: field {name!r} is there twice")
        fields[name] = field
    rest = {key: data[key] for key in ("neutral", "max_unknown", "name") if key in data}
    return fields, rest


@contextlib.contextmanager
def naming(source: str | PathLike[str] | Mapping[str, Any]) -> Iterator[None]:
    """An error in the block names the file, if ``source`` is one."""
    try:
        yield
    except SchemaError as error:
        if isinstance(source, Mapping) or _is_text(source):
            raise
        name = str(source)[:200]
        raise SchemaError(f"{name if name.isprintable() else repr(name)}: {error}") from None


def _is_text(source: str | PathLike[str]) -> bool:
    return isinstance(source, str) and source.lstrip().startswith("{")


def _parse(source: str | PathLike[str]) -> Any:
    if isinstance(source, str) and _is_text(source):
        text = source
    else:
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise SchemaError(f"schema: cannot be read: {reason or error}") from None
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"schema: not valid JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise SchemaError(f"schema: key {twice!r} is there twice in one object")
    return out


def _no_constant(text: str) -> Any:
    raise SchemaError(f"schema: {text} is not a JSON number; give a finite one")


def _field(entry: Any) -> tuple[str, Field]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise SchemaError(f"schema: each field is an object with a 'name', got {entry!r:.80}")
    name, kind = entry["name"], entry.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise SchemaError(
            f"field {name!r}: kind {kind!r} is not known; allowed: {', '.join(_KEYS)}"
        )
    needed, optional = _KEYS[kind]
    _check_keys(f"field {name!r}", entry, needed | {"name", "kind"}, optional)
    arguments = {key: value for key, value in entry.items() if key not in ("name", "kind")}
    try:
        return name, _MAKERS[kind](**arguments)
    except SchemaError as error:
        raise SchemaError(f"field {name!r}: {error}") from None


def _check_keys(where: str, data: Any, needed: set[str], optional: set[str]) -> None:
    if not isinstance(data, Mapping):
        raise SchemaError(f"{where}: must be a JSON object, got {type(data).__name__}")
    unknown = [key for key in data if key not in needed | optional]
    if unknown:
        allowed = ", ".join(sorted(needed | optional))
        raise SchemaError(f"{where}: unknown key {unknown[0]!r}; allowed: {allowed}")
    missing = sorted(needed - set(data))
    if missing:
        raise SchemaError(f"{where}: missing key {missing[0]!r}")


def without_buckets(data: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON form without buckets and knots: only what decides how a state is read."""
    fields = [
        {key: value for key, value in entry.items() if key not in ("buckets", "knots")}
        for entry in data["fields"]
    ]
    return {**data, "fields": fields}


def differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """How two JSON forms differ, one line each."""
    out = [
        f"{key}: {mine[key]!r} against {other[key]!r}"
        for key in ("name", "neutral", "max_unknown")
        if mine[key] != other[key]
    ]
    left = {entry["name"]: entry for entry in mine["fields"]}
    right = {entry["name"]: entry for entry in other["fields"]}
    out += [f"field {name!r}: only in the first" for name in left if name not in right]
    out += [f"field {name!r}: only in the second" for name in right if name not in left]
    for name in (name for name in left if name in right):
        a, b = left[name], right[name]
        keys = sorted(set(a) | set(b), key=list({**a, **b}).index)
        out += [
            f"field {name!r}: {key} {a.get(key)!r} against {b.get(key)!r}"
            for key in keys
            if a.get(key) != b.get(key)
        ]
    if not out and list(left) != list(right):
        out.append(f"order of fields: {', '.join(left)} against {', '.join(right)}")
    return out


def replace_knots(
    fields: Mapping[str, Field], columns: Sequence[Column], knots: Mapping[str, Knots | None]
) -> dict[str, Field]:
    """``fields`` with the knots of the named fields or columns replaced."""
    out = dict(fields)
    of_field = {c.name: (c.field, i) for i, c in enumerate(columns)}
    first = {c.field: i for i, c in reversed(list(enumerate(columns)))}
    for name, row in knots.items():
        try:
            if name in out:
                out[name] = out[name].with_knots(row)
            elif name in of_field:
                key, at = of_field[name]
                out[key] = _one_row(out[key], at - first[key], row)
            else:
                raise SchemaError(f"no such field or column; allowed: {', '.join(of_field)}")
        except SchemaError as error:
            raise SchemaError(f"knots of {name!r}: {error}") from None
    return out


def _one_row(field: Field, component: int, row: Knots | None) -> Field:
    """A vector field with the knots of one component replaced."""
    uniform = uniform_knots(field.low, field.high, field.buckets)
    rows: list[Any] = list(field.knots or (uniform,) * field.n)
    rows[component] = uniform if row is None else list(row)
    return field.with_knots(rows)
