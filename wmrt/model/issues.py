"""What can be wrong with a state, and the words for it. Nothing here raises, whatever the value."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

#: kind -> sentence; ``value`` and ``allowed`` are filled in.
_SENTENCES = {
    "missing": "no value given; allowed: {allowed}",
    "empty": "the value given means unknown; allowed: {allowed}",
    "type": "{value} has the wrong type; allowed: {allowed}",
    "nonfinite": "{value} is not a finite float32; allowed: {allowed}",
    "unseen": "{value} is not a value it knows; allowed: {allowed}",
    "range": "{value} is out of range; allowed: {allowed}",
    "length": "{value} has the wrong shape; allowed: {allowed}",
    "required": "required, but its value is unknown ({value}); allowed: {allowed}",
    "extra": "{value} is not declared by the schema; remove it or declare it; allowed: {allowed}",
    "max_unknown": "{value} optional fields are unknown; allowed: {allowed}",
    "container": "{value} is not a state; allowed: {allowed}",
}

#: Kinds that make the whole state unfit to act on; the others cost one value at most.
INVALID_KINDS = frozenset({"required", "extra", "max_unknown", "container"})

#: Kinds that only say that an optional value is not there; strict encoding accepts these.
ABSENT_KINDS = frozenset({"missing", "empty"})

_SIZED = frozenset({list, tuple, dict, set, frozenset, bytes, bytearray})
_NUMPY_SCALARS = frozenset(kind for kind in np.sctypeDict.values() if kind is not np.object_)


class Issue(NamedTuple):
    """One thing that is wrong with a state.

    Attributes:
        field: the column (``pose[2]`` for a vector's component), the field, or an undeclared key;
            empty for the state as a whole.
        kind: ``missing`` (no key), ``empty`` (None, "" or "unknown"), ``type``, ``nonfinite`` (NaN,
            infinite, or beyond float32), ``unseen`` (a category or flag value that is not known),
            ``range`` (clamped, not unknown), ``length`` (a vector of another shape), ``required``
            (such a field is unknown; follows the issue that made it so), ``extra`` (undeclared
            key), ``max_unknown`` (too many optional fields unknown), ``container`` (no mapping).
        value: what was given (for ``required`` the kind of the cause), as a plain None, bool, int,
            float or short str that JSON can hold (but for NaN and infinities).
        allowed: what would be right, in words.
    """

    field: str
    kind: str
    value: bool | int | float | str | None
    allowed: str

    @property
    def invalid(self) -> bool:
        """True when the state as a whole must not be acted on."""
        return self.kind in INVALID_KINDS

    @property
    def message(self) -> str:
        """One line: the field, what was given, what is allowed."""
        text = _SENTENCES[self.kind].format(value=repr(self.value), allowed=self.allowed)
        return f"{self.field or 'state'}: {text}"


def plain(value: Any) -> bool | int | float | str | None:
    """``value`` as a small plain object: itself when it is one already, else a short description.

    No method of a foreign class is relied on, so a repr that raises or runs long cannot hurt the
    loop.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value  # type: ignore[no-any-return]
    if kind is int:
        small = -(2**63) <= value < 2**63
        return int(value) if small else f"int of {value.bit_length()} bits"
    if kind is str:
        return str(value) if len(value) <= 80 else f"{value[:77]}..."
    if kind is np.ndarray:
        return f"array of shape {value.shape}"
    try:
        if kind in _SIZED:
            return f"{kind.__name__} of length {len(value)}"
        if kind in _NUMPY_SCALARS and type(value.item()) is not kind:
            return plain(value.item())
        return f"object of type {kind.__name__:.60}"
    except Exception:  # a metaclass may raise even here
        return "object of unnamed type"
