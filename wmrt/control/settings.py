"""What a control loop is built from, checked before it runs. Each error says what was given and
what is allowed."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from wmrt.core.clock import SystemClock
from wmrt.core.errors import SafetyError
from wmrt.core.types import ActionSpec

#: What the controller reads of a policy's schema; see `wmrt.control.protocol.SchemaLike`.
_SCHEMA = ("fields", "columns", "neutral", "quantize", "decode")


def require(ok: bool, name: str, allowed: str, given: Any) -> None:
    """Raise `SafetyError` unless ``ok``."""
    if not ok:
        shown = " ".join(repr(given).split())[:80]
        raise SafetyError(f"{name} must be {allowed}, got {shown}")


def seconds(name: str, value: Any, *, infinite: bool = False) -> float:
    """A duration above 0; `math.inf` only if ``infinite``."""
    allowed = "above 0 seconds, or math.inf" if infinite else "a finite number of seconds above 0"
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, (bool, np.bool_)):
        try:
            number = float(value)
        except (OverflowError, ValueError):  # an integer beyond every float
            number = math.nan
    require(number > 0 and (infinite or number < math.inf), name, allowed, value)
    return number


def nanoseconds(name: str, value: Any) -> int | None:
    """A duration as `seconds` has it, or None."""
    return None if value is None else round(seconds(name, value) * 1e9)


def pace(period: Any, deadline: Any) -> tuple[float, float]:
    """The period in seconds, and the deadline in nanoseconds, by default the period."""
    seconds_ = seconds("period", period)
    limit = seconds_ if deadline is None else seconds("deadline", deadline, infinite=True)
    return seconds_, limit * 1e9


def watchdog(value: Any, deadline_ns: float, clock: Any) -> bool:
    """Whether the policy gets a thread of its own; None: if there is a deadline to keep, and time
    is the machine's (a simulator waits for its policy, and would drive differently each time)."""
    require(value is None or type(value) is bool, "watchdog", "True, False or None", value)
    if value is None:
        return deadline_ns < math.inf and (clock is None or isinstance(clock, SystemClock))
    if value and deadline_ns == math.inf:
        raise SafetyError("watchdog=True needs a deadline to watch; deadline is math.inf, give one")
    return bool(value)


def parts(clock: Any, timer: Any, fallback: Any, recorder: Any) -> None:
    """What else a controller is made of; the clock, the fallback and the recorder may be None."""
    has_methods("clock", clock, ("now_ns",), optional=True)
    require(callable(timer), "timer", "a function () -> nanoseconds", timer)
    function("fallback", fallback, "(state, last action) -> action")
    has_methods("recorder", recorder, ("record", "command"), optional=True)


def count(name: str, value: Any, least: int) -> int:
    """A whole number of at least ``least``."""
    ok = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    ok = ok and bool(value >= least)
    require(ok, name, f"a whole number of at least {least}", value)
    return int(value)


def text(name: str, value: Any) -> str:
    """A string that is not empty."""
    require(isinstance(value, str) and bool(value), name, "a string that is not empty", value)
    return str(value)


def function(name: str, value: Any, shape: str) -> None:
    """Something to call with ``shape`` as its signature, or None."""
    require(value is None or callable(value), name, f"a function {shape}, or None", value)


def has_methods(name: str, value: Any, methods: tuple[str, ...], optional: bool = False) -> None:
    """An object, not its class, that has ``methods``; None too if ``optional``."""
    ok = not isinstance(value, type) and all(callable(getattr(value, m, None)) for m in methods)
    allowed = f"an object with {' and '.join(f'{m}()' for m in methods)}"
    none = optional and value is None
    require(ok or none, name, allowed + (", or None" if optional else ""), value)


def policy(name: str, value: Any) -> None:
    """A `Policy`: ``schema``, ``actions``, ``reset()`` and ``step()``."""
    has_methods(name, value, ("step", "reset"))
    actions = getattr(value, "actions", None)
    require(isinstance(actions, ActionSpec), f"{name}.actions", "an ActionSpec", actions)
    schema(f"{name}.schema", getattr(value, "schema", None))


def schema(name: str, value: Any) -> None:
    """A `SchemaLike`, such as a `StateSchema`."""
    ok = not isinstance(value, type) and all(hasattr(value, part) for part in _SCHEMA)
    require(ok, name, f"a StateSchema, or have its {', '.join(_SCHEMA)}", value)
