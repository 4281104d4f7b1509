"""What policies and channels return, as plain numbers; a `Finding` says why it cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from wmrt.safety import Finding, describe

#: What nearly every policy gives, and is looked for first.
FLOAT32 = np.dtype(np.float32)
_NUMBERS = frozenset("fiu")  # numpy kinds; strings such as "0.5" would convert, and must not


def as_action(value: Any, size: int) -> tuple[float, ...] | Finding:
    """``size`` floats, finite or not, from an array, tensor or sequence. Never raises."""
    try:
        if type(value) is np.ndarray and value.dtype is FLOAT32 and value.shape == (size,):
            return tuple(value.tolist())
        array = np.asarray(value)
        if array.dtype.kind not in _NUMBERS:
            return Finding("action", "type", describe(value), f"{size} numbers")
        if array.shape != (size,):
            return Finding("action", "shape", str(array.shape)[:80], f"({size},)")
        return tuple(_doubles(array).tolist())
    except Exception as error:  # ragged lists, tensors on another device, hostile objects
        return Finding("action", type(error).__name__[:80], describe(value), f"{size} numbers")


def as_chunk(value: Any, size: int, rows: int) -> tuple[tuple[float, ...], ...] | Finding:
    """The first ``rows`` rows of float[H, size], copied; empty when there is no chunk."""
    if value is None:
        return ()
    try:
        if type(value) is np.ndarray and value.dtype is FLOAT32 and value.shape[1:] == (size,):
            return tuple(map(tuple, value[:rows].tolist()))
        array = np.asarray(value)
        if array.dtype.kind not in _NUMBERS or array.ndim != 2 or array.shape[1] != size:
            found = f"{array.dtype} {array.shape}"[:80]
            return Finding("chunk", "shape", found, f"numbers (H, {size})")
        return tuple(map(tuple, _doubles(array[:rows]).tolist()))
    except Exception as error:
        return Finding("chunk", type(error).__name__[:80], describe(value), f"numbers (H, {size})")


def as_predicted(
    value: Any, names: Iterable[str]
) -> dict[str, float | tuple[float, ...]] | Finding:
    """The known numeric fields ``names`` of a predicted state. None (unknown) is left out."""
    result: dict[str, float | tuple[float, ...]] = {}
    if value is None:
        return result
    if type(value) is not dict and not isinstance(value, Mapping):
        return Finding("predicted", "type", describe(value), "a mapping")
    name = ""
    try:
        get = value.get
        for name in names:
            part = get(name)
            if type(part) is float:
                result[name] = part
            elif part is not None:
                result[name] = _numbers(part)
    except Exception as error:
        return Finding(name[:80], type(error).__name__[:80], None, "numbers")
    return result


def _numbers(value: Any) -> tuple[float, ...]:
    """The components of a scalar or vector that are known."""
    if isinstance(value, (list, tuple)):
        value = [part for part in value if part is not None]
        if not value:
            return ()
    array = np.asarray(value)
    if array.dtype.kind not in _NUMBERS:
        raise TypeError(f"{array.dtype} is no number")
    return tuple(_doubles(array).ravel().tolist())


def _doubles(array: Any) -> Any:
    """An array whose ``tolist`` gives Python floats."""
    return array if array.dtype.char in "fd" else array.astype(np.float64)
