"""Frozen values as JSON, and back, bit for bit.

None, bools, strings, integers of at most 64 bits, finite floats, lists, and dicts with string keys
are themselves: Python and JavaScript print the shortest decimal that reads back as the same double,
-0.0 included. Everything else is an object with a ``"$"`` that names what it is:

    {"$": "float", "value": "nan" | "inf" | "-inf"}                 JSON has no such numbers
    {"$": "int", "hex": "-0x1p..."}                                 beyond 64 bits
    {"$": "numpy", "dtype": "float32", "value": 0.5}                a NumPy scalar
    {"$": "array", "dtype": "<f4", "shape": [3], "values": [...]}   or "base64", if it is longer
    {"$": "tuple", "items": [...]}   {"$": "dict", "items": [[key, value], ...]}
    {"$": "bytes" | "bytearray", "base64": "..."}
    {"$": "opaque", "type": "Camera"}                               an object that no schema reads

and, of the types in `wmrt.control.recording.frozen`, ``objects``, ``derived``, ``sized``,
``broken``, ``lost``.
The bits of a NaN's payload are not kept: no schema reads them.
"""

from __future__ import annotations

import array
import base64
import math
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np

from wmrt.control.recording.frozen import Broken, Derived, Lost, Objects, Opaque, Pairs, Sized
from wmrt.core.errors import RecordingError

#: Longer arrays are written as base64.
LISTED = 64
_SMALL = 2**63


def encode(value: Any) -> Any:
    """A frozen value as JSON data without NaN."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$": "float", "value": str(value)}
    if kind is int:
        return value if -_SMALL <= value < _SMALL else {"$": "int", "hex": hex(value)}
    if kind is list:
        return [encode(part) for part in value]
    if kind is tuple:
        return {"$": "tuple", "items": [encode(part) for part in value]}
    if kind is dict:
        if "$" in value:
            return encode(Pairs(tuple(value.items())))
        return {key: encode(part) for key, part in value.items()}
    return _ENCODERS.get(kind, _encode_scalar)(value)


def plain(value: Any) -> Any:
    """Records of our own, which need no marks: a tuple as a list, an enum by its value."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return encode(value.value if isinstance(value, Enum) else value)


def unplain(data: Any) -> Any:
    """Inverse of `plain`: lists as tuples; an enum stays its value."""
    return tuple(unplain(part) for part in data) if type(data) is list else decode(data)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _encode_scalar(value: Any) -> dict[str, Any]:
    """A NumPy scalar: by value where Python's numbers hold it exactly, else by its bytes."""
    dtype = value.dtype
    if dtype.kind in "fiub" and dtype.itemsize <= 8:
        return {"$": "numpy", "dtype": dtype.name, "value": encode(value.item())}
    whole = np.array(value)
    return {"$": "numpy", "dtype": whole.dtype.str, "base64": _base64(whole.tobytes())}


def _encode_array(value: Any) -> dict[str, Any]:
    head = {"$": "array", "dtype": value.dtype.str, "shape": list(value.shape)}
    if value.size <= LISTED and value.dtype.kind in "fiub" and value.dtype.itemsize <= 8:
        return {**head, "values": [encode(part) for part in value.ravel().tolist()]}
    return {**head, "base64": _base64(value.tobytes())}


_ENCODERS: dict[type, Any] = {
    bytes: lambda v: {"$": "bytes", "base64": _base64(v)},
    bytearray: lambda v: {"$": "bytearray", "base64": _base64(bytes(v))},
    array.array: lambda v: {"$": "array.array", "code": v.typecode, "base64": _base64(v.tobytes())},
    np.ndarray: _encode_array,
    Pairs: lambda v: {"$": "dict", "items": [[encode(k), encode(x)] for k, x in v.items]},
    Objects: lambda v: {
        "$": "objects",
        "shape": list(v.shape),
        "items": [encode(part) for part in v.items],
    },
    Derived: lambda v: {"$": "derived", "base": v.base, "type": v.type, "value": encode(v.value)},
    Broken: lambda v: {"$": "broken", "error": v.error},
    Opaque: lambda v: {"$": "opaque", "type": v.type},
    Sized: lambda v: {"$": "sized", "type": v.type, "size": v.size},
    Lost: lambda v: {"$": "lost", "reason": v.reason},
}


def decode(data: Any) -> Any:
    """The value that `encode` was given, as a controller reads it.

    Objects of foreign types come back as objects of empty classes with the same names.

    Raises:
        RecordingError: a value that was not kept, or data that `encode` does not write.
    """
    if type(data) is list:
        return [decode(part) for part in data]
    if type(data) is not dict:
        return data
    tag = data.get("$")
    if tag is None:
        return {key: decode(part) for key, part in data.items()}
    if tag == "lost":
        raise RecordingError(f"a value was too large or too strange to be kept: {data['reason']}")
    try:
        return _DECODERS[tag](data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(f"a value cannot be read ({error!r}): {str(data)[:80]}") from None


def _decode_scalar(data: dict[str, Any]) -> Any:
    dtype = np.dtype(data["dtype"])
    if "value" in data:
        return dtype.type(decode(data["value"]))
    return np.frombuffer(base64.b64decode(data["base64"], validate=True), dtype)[0]


def _decode_array(data: dict[str, Any]) -> Any:
    dtype = np.dtype(data["dtype"])
    if "values" in data:
        return np.array(decode(data["values"]), dtype).reshape(data["shape"])
    raw = base64.b64decode(data["base64"], validate=True)
    flat = np.frombuffer(raw, dtype).copy() if raw else np.empty(0, dtype)
    return flat.reshape(data["shape"])


def _decode_objects(data: dict[str, Any]) -> Any:
    flat = np.empty(len(data["items"]), object)
    for index, part in enumerate(data["items"]):
        flat[index] = decode(part)
    return flat.reshape(data["shape"])


def _decode_derived(data: dict[str, Any]) -> Any:
    base, value = _BASES[data["base"]], decode(data["value"])
    if data["value"] == {"$": "opaque", "type": data["type"]}:
        return type(data["type"], (base,), {"__iter__": _refuse})()
    return type(data["type"], (base,), {})(value)


class _BrokenMapping(Mapping[str, Any]):
    """Raises an exception of the recorded name when it is read."""

    def __init__(self, error: str) -> None:
        self._error = error

    def __getitem__(self, key: str) -> Any:
        raise named_error(self._error)

    def __iter__(self) -> Iterator[str]:
        raise named_error(self._error)

    def __len__(self) -> int:
        raise named_error(self._error)


def named_error(name: str) -> Exception:
    """An exception of a class called ``name``."""
    error: Exception = type(name, (Exception,), {})()
    return error


def _refuse(self: Any) -> Any:
    raise TypeError("what this held could not be read when it was recorded")


_BASES: dict[str, type] = {"float": float, "int": int, "str": str, "list": list, "tuple": tuple}
_DECODERS: dict[str, Any] = {
    "float": lambda d: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[d["value"]],
    "int": lambda d: int(d["hex"], 16),
    "tuple": lambda d: tuple(decode(d["items"])),
    "dict": lambda d: {decode(key): decode(part) for key, part in d["items"]},
    "bytes": lambda d: base64.b64decode(d["base64"], validate=True),
    "bytearray": lambda d: bytearray(base64.b64decode(d["base64"], validate=True)),
    "array.array": lambda d: array.array(d["code"], base64.b64decode(d["base64"], validate=True)),
    "numpy": _decode_scalar,
    "array": _decode_array,
    "objects": _decode_objects,
    "derived": _decode_derived,
    "broken": lambda d: _BrokenMapping(d["error"]),
    "opaque": lambda d: type(d["type"], (), {})(),
    "sized": lambda d: {"set": set, "frozenset": frozenset}[d["type"]](range(d["size"])),
}
