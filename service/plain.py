"""Values as JSON has them."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """JSON data; numbers that are none as text, because a sensor's NaN belongs in the record."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return value
