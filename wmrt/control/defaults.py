"""Limits and breakers from what is already stated: actuators and schema."""

from __future__ import annotations

from typing import Any

from wmrt.control import settings
from wmrt.control.protocol import Policy, SchemaLike
from wmrt.core.errors import SafetyError
from wmrt.core.types import ActionSpec
from wmrt.safety import Breakers, Limits, StateLimit


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


def breakers_for(model: Policy, period: float, given: Breakers | None, robot: str) -> Breakers:
    """Those given, if they are for this policy and period, else the default ones.

    Raises:
        SafetyError: no breakers, or for other actuators or another period.
    """
    if given is None:
        return Breakers(default_limits(model.schema, model.actions, period), robot=robot)
    settings.require(isinstance(given, Breakers), "breakers", "wmrt.safety.Breakers", given)
    limits = given.limits
    if limits.spec != model.actions or limits.period != period:
        raise SafetyError(
            f"breakers for {limits.spec.names} at {limits.period} s do not fit a policy with "
            f"{model.actions.names} at {period} s; build them with default_limits"
        )
    return given
