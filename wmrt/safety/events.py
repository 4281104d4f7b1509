"""Events: what the breakers decided and why, in a bounded ring."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from wmrt.safety.table import Cause, Level, State

Plain: TypeAlias = "bool | int | float | str | None"


class Finding(NamedTuple):
    """One thing found wrong.

    Attributes:
        field: what it concerns: an actuator, a state field, a channel; empty for the whole.
        kind: what is wrong, one word (``nonfinite``, ``above``, ``step``, ...).
        value: what was given.
        limit: what is allowed; a number, or words.
    """

    field: str
    kind: str
    value: Plain = None
    limit: Plain = None


class Event(NamedTuple):
    """One entry of the record.

    Attributes:
        t_ns: reading of the breakers' clock at the start of the step, nanoseconds.
        robot: name of the robot.
        step: number of the control step, from 1; 0 before the first.
        level, cause: which breaker, and what happened.
        field, kind, value, limit: the `Finding`, in normalised units for actions.
        action_in: the proposed action, None when there was none.
        action_out: the action sent in this step, None for an event between steps.
        before, after: state of the breakers.
        config: hash of the limits.
    """

    t_ns: int
    robot: str
    step: int
    level: Level
    cause: Cause
    field: str
    kind: str
    value: Plain
    limit: Plain
    action_in: tuple[float, ...] | None
    action_out: tuple[float, ...] | None
    before: State
    after: State
    config: str

    def to_json(self) -> dict[str, Any]:
        """Plain data: enums by name."""
        data = self._asdict()
        data["level"] = self.level.name.lower()
        for key in ("cause", "before", "after"):
            data[key] = data[key].value
        return data


class EventRing:
    """The last ``capacity`` events. One thread appends; another may `drain`."""

    def __init__(self, capacity: int) -> None:
        self._ring: deque[Event] = deque(maxlen=capacity)
        self.total = 0

    def __len__(self) -> int:
        return len(self._ring)

    def append(self, event: Event) -> None:
        self._ring.append(event)
        self.total += 1

    def drain(self) -> list[Event]:
        """Take out all events, oldest first."""
        taken = []
        while True:
            try:
                taken.append(self._ring.popleft())
            except IndexError:
                return taken

    def latest(self, count: int) -> tuple[Event, ...]:
        """The last ``count`` events, or as many as are held, oldest first; they stay. Call it from
        the appending thread."""
        return tuple(reversed(tuple(islice(reversed(self._ring), count))))

    def snapshot(self) -> list[Event]:
        """All events still held, oldest first; they stay. Call it from the appending thread."""
        return list(self._ring)


def describe(value: object) -> Plain:
    """``value`` as something small and plain; calls nothing that belongs to the value."""
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value  # type: ignore[return-value]
    if kind is int:
        small = -(2**63) <= value < 2**63  # type: ignore[operator]
        return value if small else f"integer of {value.bit_length()} bits"  # type: ignore[attr-defined, return-value]
    if kind is str:
        return value[:80]  # type: ignore[index, no-any-return]
    return f"<{kind.__name__}>"
