"""What a client is given: durations, times, positions, a token."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from wmrt.core.errors import UsageError


def seconds(value: float) -> float:
    """A deadline from now; `UsageError` for what is none."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < 1e9:
        raise UsageError(
            f"a deadline of {str(value)[:40]!r} s: a number above 0, got {_kind(value)}"
        )
    return float(value)


def positions(value: Sequence[float] | None) -> list[float] | None:
    """``measured``, one number per actuator; `UsageError` for what is none."""
    if value is None:
        return None
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return [float(one) for one in value]
    except (TypeError, ValueError, OverflowError):
        said = f"measured={str(value)[:40]!r}: where the actuators are, one number for each"
        raise UsageError(f"{said}, got {_kind(value)}") from None


def required(name: str, value: Any, kind: type | tuple[type, ...], allowed: str) -> None:
    """`UsageError`, which says what is ``allowed``, unless ``value`` is of ``kind``."""
    if not isinstance(value, kind):
        raise UsageError(f"{name}={str(value)[:40]!r}: {allowed}, got {_kind(value)}")


def reading(value: Any) -> int:
    """Of a clock, ns; numpy's integers too. `UsageError` for anything else."""
    if isinstance(value, (int, np.integer)) and 0 <= value < 2**63:
        return int(value)
    raise UsageError(f"captured_ns={str(value)[:40]}: a reading of time.monotonic_ns")


def sendable(token: str | None) -> str | None:
    """A token without the end of the line that its file may have. `UsageError`, which does not show
    it, for one that no header can carry."""
    if token is not None and not isinstance(token, str):
        raise UsageError(f"the token: a text, got {_kind(token)}")
    stripped = None if token is None else token.strip()
    if stripped is not None and not (stripped.isascii() and stripped.isprintable()):
        raise UsageError("the token: visible ASCII characters, in one line")
    return stripped


def _kind(value: Any) -> str:
    return type(value).__name__
