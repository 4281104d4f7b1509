"""An observation as it was, kept so that nothing which happens to it later shows.

A loop may hand over the same dict and the same arrays at every step, and the recorder's thread
reads them later. So what the loop gives is copied before `Controller.act` returns: cheaply for the
usual flat dict of numbers and words, value by value for anything else. What cannot be read is kept
as what the schema says of it: its type's name.
"""

from __future__ import annotations

import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

#: Values, bytes and levels of one observation that are kept. Copying takes about 1 us a value, in
#: the loop.
MAX_VALUES = 4096
MAX_BYTES = 1 << 20
MAX_DEPTH = 32

_SCALARS = frozenset(kind for kind in np.sctypeDict.values() if kind not in (np.object_, np.void))
#: Types whose objects never change and hold nothing that does.
IMMUTABLE: frozenset[type] = frozenset({type(None), bool, int, float, str, bytes}) | _SCALARS
#: Of what is no mapping only these show in the record (`wmrt.safety.describe`).
_PLAIN: frozenset[type] = frozenset({type(None), bool, int, float, str})


class Opaque(NamedTuple):
    """An object of a type that no schema reads."""

    type: str


class Sized(NamedTuple):
    """A set: unreadable too, but an issue tells its size."""

    type: str
    size: int


class Derived(NamedTuple):
    """An object of a class derived from ``base``: ``float``, ``int``, ``str``, ``list`` or
    ``tuple``; ``value`` is what the base holds, `Opaque` when even that raises."""

    base: str
    type: str
    value: Any


class Broken(NamedTuple):
    """A mapping that raised ``error`` when it was read."""

    error: str


class Pairs(NamedTuple):
    """A dict some of whose keys are no strings."""

    items: tuple[tuple[Any, Any], ...]


class Objects(NamedTuple):
    """A NumPy array of objects."""

    shape: tuple[int, ...]
    items: tuple[Any, ...]


class Lost(NamedTuple):
    """A value that was readable and is not kept, and why: a replay cannot go past it."""

    reason: str


class _Budget:
    """What may still be kept of one observation."""

    def __init__(self) -> None:
        self.values, self.bytes, self.depth = MAX_VALUES, MAX_BYTES, 0

    def spend(self, values: int, size: int = 0) -> bool:
        self.values -= values
        self.bytes -= size
        return self.values >= 0 and self.bytes >= 0


def freeze_observation(obs: Any, *, nested: bool) -> Any:
    """The part of ``obs`` that a controller reads: a dict of its own that holds frozen values,
    ``{"state": that dict}`` when the state lies inside, else what stands for an unreadable one.

    Args:
        nested: whether a mapping under ``"state"`` is the state, as `Intake` decides.
    """
    try:
        if type(obs) is dict or isinstance(obs, Mapping):
            inner = obs.get("state") if nested else None
            if inner is not None and isinstance(inner, Mapping):
                return {"state": _state(dict(inner))}
            return _state(dict(obs))
    except Exception:  # a mapping that raises when it is read; the controller saw the same
        return Opaque(_name(obs))
    return obs if type(obs) in _PLAIN else Opaque(_name(obs))


def freeze_times(captured: Any) -> Any:
    """Capture times as a controller reads them: a mapping as a dict of its own."""
    try:
        if type(captured) is dict or isinstance(captured, Mapping):
            return freeze(dict(captured))
    except Exception as error:
        return Broken(type(error).__name__[:80])
    return captured if type(captured) in _PLAIN else Opaque(_name(captured))


def _state(state: dict[Any, Any]) -> Any:
    """A fresh dict, its values frozen."""
    for key, value in state.items():
        if type(key) is not str or type(value) not in IMMUTABLE:
            return freeze(state)
    return state


def freeze(value: Any) -> Any:
    """``value`` as something that no longer changes; never raises."""
    return _freeze(value, _Budget())


def _freeze(value: Any, budget: _Budget) -> Any:
    kind = type(value)
    if kind in IMMUTABLE:
        size = len(value) if isinstance(value, (str, bytes)) else 8
        return value if budget.spend(1, size) else Lost("larger than what is kept")
    if budget.depth == MAX_DEPTH:
        return Lost(f"more than {MAX_DEPTH} levels")
    budget.depth += 1
    try:
        if kind is dict:
            return _dict(value, budget)
        if kind is list or kind is tuple:
            return _sequence(value, budget)
        if kind is np.ndarray:
            return _array(value, budget)
        return _other(value, budget)
    except Exception:  # foreign code behind the value
        return Opaque(_name(value))
    finally:
        budget.depth -= 1


def _sequence(value: Any, budget: _Budget) -> Any:
    if not budget.spend(len(value)):
        return Lost(f"a sequence of {len(value)} values")
    return type(value)([_freeze(part, budget) for part in value])


def _dict(value: dict[Any, Any], budget: _Budget) -> Any:
    if not budget.spend(len(value)):
        return Lost(f"a mapping of {len(value)} values")
    if all(type(key) is str for key in value):
        return {key: _freeze(part, budget) for key, part in value.items()}
    return Pairs(tuple((_freeze(k, budget), _freeze(v, budget)) for k, v in value.items()))


def _array(value: Any, budget: _Budget) -> Any:
    if value.dtype.hasobject:
        if value.dtype.names is not None or not budget.spend(value.size):
            return Lost(f"an array {value.dtype} of shape {value.shape}")
        return Objects(value.shape, tuple(_freeze(part, budget) for part in value.ravel()))
    if not budget.spend(1, value.nbytes):
        return Lost(f"an array {value.dtype} of shape {value.shape}")
    return value.copy()


def _other(value: Any, budget: _Budget) -> Any:
    """Anything but the types above. Reads it as `wmrt.model.readings` does."""
    kind = type(value)
    if kind in (bytearray, array.array):
        kept = budget.spend(1, len(value) * 8)
        return value[:] if kept else Lost(f"{kind.__name__} of {len(value)}")
    if kind is set or kind is frozenset:
        return Sized(kind.__name__, len(value))
    if isinstance(value, float):
        return Derived("float", _name(value), float.__float__(value))
    if isinstance(value, int):
        return Derived("int", _name(value), int.__int__(value))
    if isinstance(value, str):
        return Derived("str", _name(value), str.__str__(value))
    if isinstance(value, (list, tuple)):
        base = "list" if isinstance(value, list) else "tuple"
        try:
            parts = list(value)
        except Exception:
            return Derived(base, _name(value), Opaque(_name(value)))
        return Derived(base, _name(value), _sequence(parts, budget))
    if isinstance(value, (np.ndarray, np.void, array.array)):
        return Lost(f"a {_name(value)}")
    return Opaque(_name(value))


def _name(value: Any) -> str:
    try:
        return f"{type(value).__name__:.80}"
    except Exception:  # a metaclass may raise even here
        return "?"
