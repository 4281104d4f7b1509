"""What a client is given: durations, times, a token."""

from __future__ import annotations

from typing import Any

import numpy as np

from wmrt.core.errors import UsageError


def seconds(value: float) -> float:
    """A deadline from now; `UsageError` for what is none."""
    if isinstance(value, bool) or not 0 < value < 1e9:
        raise UsageError(f"a deadline of {value!r} s: a number above 0")
    return float(value)


def reading(value: Any) -> int:
    """Of a clock, ns; numpy's integers too. `UsageError` for anything else."""
    if isinstance(value, (int, np.integer)) and 0 <= value < 2**63:
        return int(value)
    raise UsageError(f"captured_ns={str(value)[:40]}: a reading of time.monotonic_ns")


def sendable(token: str | None) -> str | None:
    """A token without the end of the line that its file may have. `UsageError`, which does not show
    it, for one that no header can carry."""
    stripped = None if token is None else token.strip()
    if stripped is not None and not (stripped.isascii() and stripped.isprintable()):
        raise UsageError("the token: visible ASCII characters, in one line")
    return stripped
