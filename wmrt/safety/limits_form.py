"""The form in which people write limits down: per actuator, in its unit, named;
ranges and rates only ever tighter.

.. code-block:: json

    {
     "wmrt_limits": 1,
     "actions": {
      "steering": {"unit": "rad", "low": -0.03, "high": 0.03, "rate_up": 0.1, "rate_down": 0.1}
     },
     "state": {"speed": {"unit": "m/s", "low": 0, "high": 30}},
     "options": {"trip_window": 1.0}
    }

Every actuator stands in ``actions``; ``agree`` may be added, and is otherwise what the actuator can
be moved in one period. ``state`` and ``options`` (any number of `Limits`) may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from wmrt.core.errors import SafetyError
from wmrt.safety.events import describe
from wmrt.safety.limit_checks import is_number
from wmrt.safety.limits import DimLimit, Limits, StateLimit

VERSION = 1
_KEY = "wmrt_limits"
_RANGE = ("low", "high")
_RATES = ("rate_up", "rate_down")
#: Numbers of `Limits` that a document may set.
OPTIONS = tuple(f.name for f in fields(Limits) if f.default is not MISSING and f.name != "state")


def to_document(limits: Limits) -> dict[str, Any]:
    """Plain data that `tighten` turns back into these limits."""
    return {
        _KEY: VERSION,
        "actions": {
            d.name: {key: getattr(d, key) for key in ("unit", *_RANGE, *_RATES, "agree")}
            for d in limits.dims
        },
        "state": {
            s.name: {key: getattr(s, key) for key in ("unit", *_RANGE)} for s in limits.state
        },
        "options": {name: getattr(limits, name) for name in OPTIONS},
    }


def tighten(base: Limits, document: object) -> Limits:
    """The limits that ``document`` states, within ``base``.

    Args:
        base: gives actuators, period, neutral, and what the document leaves out.
        document: the form above.

    Raises:
        SafetyError: another version; a key that is unknown, missing or of another kind; a unit that
            is not the actuator's or the field's; a range or rate beyond that of ``base``; and what
            `Limits` refuses. The message names the place.
    """
    whole = _table("the document", document, (_KEY, "actions"), ("state", "options"))
    version = whole[_KEY]
    if type(version) is not int or version != VERSION:
        raise SafetyError(
            f"{_KEY} is {describe(version)!r}; this release reads {VERSION}, write that"
        )
    rows = _table("actions", whole["actions"], tuple(d.name for d in base.dims), ())
    states = _table("state", whole.get("state", {}), (), tuple(s.name for s in base.state))
    options = _table("options", whole.get("options", {}), (), OPTIONS)
    return replace(
        base,
        dims=tuple(_dim(d, rows[d.name], base.period) for d in base.dims),
        state=tuple(_state(s, states[s.name]) if s.name in states else s for s in base.state),
        **options,
    )


def _dim(own: DimLimit, row: object, period: float) -> DimLimit:
    """One actuator's entry."""
    place = f"actions.{own.name}"
    entry = _table(place, row, ("unit", *_RANGE, *_RATES), ("agree",))
    _same_unit(place, entry["unit"], own.unit)
    numbers = {key: _number(place, key, entry[key]) for key in entry if key != "unit"}
    _within(place, numbers, own)
    for key in _RATES:
        if numbers[key] > getattr(own, key):
            raise SafetyError(
                f"{place}.{key} is {numbers[key]:g} {own.unit}/s, above {getattr(own, key):g}; a "
                "limits file can only tighten"
            )
    numbers.setdefault("agree", period * max(numbers["rate_up"], numbers["rate_down"]))
    return DimLimit(own.name, own.unit, **numbers)


def _state(own: StateLimit, row: object) -> StateLimit:
    """One predicted field's entry."""
    place = f"state.{own.name}"
    entry = _table(place, row, ("unit", *_RANGE), ())
    _same_unit(place, entry["unit"], own.unit)
    numbers = {key: _number(place, key, entry[key]) for key in _RANGE}
    _within(place, numbers, own)
    return StateLimit(own.name, own.unit, **numbers)


def _within(place: str, numbers: Mapping[str, float], own: DimLimit | StateLimit) -> None:
    if numbers["low"] < own.low or numbers["high"] > own.high:
        raise SafetyError(
            f"{place}: [{numbers['low']:g}, {numbers['high']:g}] is not within [{own.low:g}, "
            f"{own.high:g}] {own.unit}; a limits file can only tighten"
        )


def _same_unit(place: str, unit: object, own: str) -> None:
    if unit != own:
        raise SafetyError(
            f"{place}.unit is {describe(unit)!r}, here it is {own!r}; give the values in that"
        )


def _number(place: str, key: str, value: object) -> float:
    if not is_number(value):
        raise SafetyError(f"{place}.{key} must be a finite number, got {describe(value)!r}")
    return float(value)  # type: ignore[arg-type]


def _table(
    place: str, value: object, needed: tuple[str, ...], allowed: tuple[str, ...]
) -> Mapping[str, Any]:
    """``value`` as an object with these keys."""
    if not isinstance(value, Mapping):
        raise SafetyError(f"{place} must be an object, got {describe(value)!r}")
    missing = [key for key in needed if key not in value]
    unknown = [key for key in value if key not in (*needed, *allowed)]
    if missing or unknown:
        said = f"lacks {missing[0]!r}" if missing else f"has {describe(unknown[0])!r}"
        optional = f", and may have {', '.join(allowed)}" if allowed else ""
        raise SafetyError(f"{place} {said}; it needs {', '.join(needed) or 'nothing'}{optional}")
    return value
