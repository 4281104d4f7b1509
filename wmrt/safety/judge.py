"""Levels 1 and 2 as pure functions: what is wrong with a proposal, and how far an action may go.

All actions here are normalised Python floats. A comparison is written so that NaN fails it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from wmrt.safety.events import Finding, describe
from wmrt.safety.float32 import towards
from wmrt.safety.limits import Box

Action = tuple[float, ...]
Deltas = Sequence[tuple[float, float]]


def range_fault(
    action: Sequence[float], boxes: Sequence[Box], names: Sequence[str]
) -> Finding | None:
    """The first value that is not finite or beyond what its box tolerates, if any."""
    for value, box, name in zip(action, boxes, names, strict=True):
        if not box.tolerated_low <= value <= box.tolerated_high:
            return _beyond(name, value, box.low, box.high)
    return None


def clamp_to_box(action: Sequence[float], boxes: Sequence[Box]) -> Action:
    """Each value brought into its box."""
    return tuple(
        [  # a list is twice as fast as a generator here
            high if value > high else low if value < low else value
            for value, (low, high, _, _) in zip(action, boxes, strict=True)
        ]
    )


def predicted_fault(
    predicted: Mapping[str, float | Sequence[float] | None],
    bounds: Iterable[tuple[str, float, float]],
) -> Finding | None:
    """The first predicted value out of bounds or not finite. None values and absent fields pass."""
    for name, low, high in bounds:
        value = predicted.get(name)
        if value is None:
            continue
        if type(value) is float and low <= value <= high:
            continue
        for part in (value,) if isinstance(value, (float, int)) else value:
            if not low <= part <= high:
                return _beyond(name, part, low, high)
    return None


def _beyond(name: str, value: float, low: float, high: float) -> Finding:
    """What is wrong with a value outside [low, high]; it may be an integer too big for a float."""
    if value - value != 0:
        return Finding(name, "nonfinite", value)
    above = value > high
    return Finding(name, "above" if above else "below", describe(value), high if above else low)


def rate_fault(
    action: Action,
    reference: Action,
    deltas: Deltas,
    tolerance: float,
    kind: str,
    names: Sequence[str],
) -> Finding | None:
    """The first value that moved from ``reference`` by more than its delta and the tolerance."""
    for value, last, (up, down), name in zip(action, reference, deltas, names, strict=True):
        change = value - last
        if change > up * (1.0 + tolerance):
            return Finding(name, kind, change, up)
        if -change > down * (1.0 + tolerance):
            return Finding(name, kind, change, -down)
    return None


def reach(goal: Action, reference: Action, deltas: Deltas) -> Action:
    """The float32 values nearest to ``goal`` that the deltas allow from ``reference`` (float32s).

    The result lies between the two, so a goal and a reference in the box give a result in the box.
    """
    result = []
    for value, last, (up, down) in zip(goal, reference, deltas, strict=True):
        step = value - last
        bounded = last + up if step > up else last - down if -step > down else value
        result.append(_exact(bounded, last, up, down))
    return tuple(result)


def _exact(value: float, last: float, up: float, down: float) -> float:
    """``value`` as a float32 towards ``last`` whose exact difference from it is allowed."""
    result = towards(value, last)
    if result - last > up or last - result > down:
        # last + up was rounded up, onto a float32. Seen with up = 0.5 - 2**-54 and last = 0.25.
        result = towards(math.nextafter(value, last), last)
    return result
