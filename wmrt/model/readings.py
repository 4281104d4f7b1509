"""What counts as a number, a text, a flag or a list in a state that comes from anywhere."""

from __future__ import annotations

import array
import math
import unicodedata
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

#: Exact types read as numbers. bool is none, nor are complex, dates, Decimal or text.
NUMBERS: frozenset[type] = frozenset(
    {int, float, np.float16, np.float32, np.float64, np.longdouble}
    | {np.int8, np.int16, np.int32, np.int64, np.longlong, np.intc}
    | {np.uint8, np.uint16, np.uint32, np.uint64, np.ulonglong, np.uintc}
)

#: Texts that are a flag, with their codes.
FLAG_TEXTS = {"false": 1, "False": 1, "true": 2, "True": 2}


def attempt(read: Callable[[Any], T | None], value: Any) -> T | None:
    """``read(value)``, or None where foreign code behind ``value`` raises."""
    try:
        return read(value)
    except Exception:  # a subclass may raise anything from any method
        return None


def to_float(value: Any) -> float | None:
    """A number as float64; None for what is no number. An integer beyond float64 is infinite."""
    kind = type(value)
    if kind is float:
        return value  # type: ignore[no-any-return]
    try:
        if kind in NUMBERS:
            return float(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, int) and kind is not bool:
            return int.__float__(value)
    except OverflowError:
        return math.inf
    inner = _unwrap(value)
    return None if inner is None else to_float(inner)


def to_bit(value: Any) -> float | None:
    """A bool or a number as float64, for flags; None for anything else."""
    inner = _unwrap(value)
    value = value if inner is None else inner
    return float(value) if type(value) in (bool, np.bool_) else to_float(value)


def to_text(value: Any) -> str | None:
    """A str, a subclass of it, or a 0-d array of one, as str; None for anything else."""
    inner = _unwrap(value)
    value = value if inner is None else inner
    return str.__str__(value) if isinstance(value, str) else None


def to_instruction(value: Any) -> str | None:
    """A text in Unicode normal form NFC; None for what is no text or cannot be written as UTF-8."""
    text = to_text(value)
    if text is None:
        return None
    text = unicodedata.normalize("NFC", text)
    text.encode("utf-8")  # a lone surrogate raises here, which `attempt` turns into None
    return text


def to_list(value: Any) -> list[Any] | None:
    """Components of a list, tuple, array.array or array of numbers; None for anything else.

    An array of two or more dimensions gives its rows, which are then no numbers.
    """
    if isinstance(value, np.ndarray):
        # tolist() turns dates into integers, so only kinds that are numbers, bools or objects.
        return value.tolist() if value.ndim and value.dtype.kind in "fiubO" else None
    if isinstance(value, (list, tuple)):
        return list(value)
    return value.tolist() if isinstance(value, array.array) else None


def _unwrap(value: Any) -> Any:
    """The scalar in a 0-d array; None when ``value`` is no such array or holds another one."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        inner = value[()]
        return None if isinstance(inner, np.ndarray) else inner
    return None
