"""What comes from a file, made fit for a terminal and for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def printable(text: str) -> str:
    """``text`` with everything that is no printable character escaped: a terminal obeys some."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def finite(value: Any) -> Any:
    """JSON data with every NaN and infinity, which JSON has no word for, replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
