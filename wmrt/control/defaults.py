"""Limits from what is already stated: actuators and schema."""

from __future__ import annotations

from typing import Any

from wmrt.control.protocol import SchemaLike
from wmrt.core.types import ActionSpec
from wmrt.safety import Limits, StateLimit


def default_limits(
    schema: SchemaLike, actions: ActionSpec, period: float, **options: Any
) -> Limits:
    """The actuators' own limits, and the schema's ranges for predicted states.

    Args:
        period: control period, seconds.
        options: further attributes of `Limits`, and ``agree``.
    """
    bounds: dict[str, StateLimit] = {}
    for column in schema.columns:
        if column.kind == "numeric":
            bound = StateLimit(column.field, column.unit, float(column.low), float(column.high))
            bounds.setdefault(column.field, bound)
    return Limits.from_spec(
        actions, period=period, neutral=schema.neutral, state=tuple(bounds.values()), **options
    )
