"""A robot's last steps in slots of some steps each, kept in arrays that are made once.

Of objects, one a slot that lives for a minute between others that live for a moment, Python's
memory got holes: that of a service of four robots at 10 Hz grew by 3 MB in an hour, while the
objects in it were no more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from wmrt.core.wire import Acted

#: Where an action came from, see `wmrt.safety.Decision`, and states of the breakers: from what is
#: best to what most deserves a look. Of a slot, the last of these is shown.
SOURCES = ("policy", "clamped", "planned", "consensus", "blocked", "fallback")
STATES = ("closed", "degraded", "half_open", "open", "latched")
_SOURCE = {name: rank for rank, name in enumerate(SOURCES)}
_STATE = {name: rank for rank, name in enumerate(STATES)}


@dataclass(frozen=True)
class Slot:
    """Some steps that came soon after each other, as they are read.

    Attributes:
        at_ns: of the first one's answer, monotonic. act_ns: of the longest step.
        source, breakers: the most remarkable of them. tripped: levels, as bits.
        low, high, last: of each actuator, normalised.
    """

    index: int
    at_ns: int
    act_ns: int
    late: int
    tripped: int
    steps: int
    source: str
    breakers: str
    low: list[float]
    high: list[float]
    last: list[float]

    def to_json(self) -> dict[str, Any]:
        return {
            "i": self.index,
            "at_ms": self.at_ns / 1e6,
            "steps": self.steps,
            "act_ms": self.act_ns / 1e6,
            "late": self.late,
            "source": self.source,
            "breakers": self.breakers,
            "tripped": [level for level in range(8) if self.tripped >> level & 1],
            "low": short(self.low),
            "high": short(self.high),
            "last": short(self.last),
        }


class Slots:
    """The last ``capacity`` slots.

    Args:
        actuators: values of an action. begun: slots before the first one here.

    Attributes:
        begun: slots so far; the newest one's index is one less.
    """

    def __init__(self, capacity: int, actuators: int, begun: int = 0) -> None:
        self.capacity, self.actuators, self.begun = capacity, actuators, begun
        self._first = begun
        self._at, self._act, self._late, self._tripped, self._steps = (
            array("q", bytes(8 * capacity)) for _ in range(5)
        )
        self._low, self._high, self._last = (
            array("d", bytes(8 * capacity * actuators)) for _ in range(3)
        )
        # Of texts that are there anyway.
        self._source, self._breakers = [""] * capacity, [""] * capacity

    def __len__(self) -> int:
        return min(self.begun - self._first, self.capacity)

    @property
    def oldest(self) -> int:
        """Index of the oldest slot."""
        return self.begun - len(self)

    def begin(self, answer: Acted, now_ns: int) -> None:
        """Another slot, of one step."""
        row = self.begun % self.capacity
        self._at[row], self._act[row], self._late[row] = now_ns, answer.act_ns, answer.late
        self._tripped[row], self._steps[row] = _bits(answer.tripped), 1
        self._source[row], self._breakers[row] = answer.source, answer.breakers
        for at, value in enumerate(answer.action, row * self.actuators):
            self._low[at] = self._high[at] = self._last[at] = value
        self.begun += 1

    def add(self, answer: Acted) -> None:
        """One more step in the newest slot."""
        row = (self.begun - 1) % self.capacity
        self._steps[row] += 1
        self._late[row] += answer.late
        if answer.act_ns > self._act[row]:
            self._act[row] = answer.act_ns
        source, state = self._source[row], self._breakers[row]
        if answer.source != source and _beyond(_SOURCE, answer.source, source):
            self._source[row] = answer.source
        if answer.breakers != state and _beyond(_STATE, answer.breakers, state):
            self._breakers[row] = answer.breakers
        if answer.tripped:
            self._tripped[row] |= _bits(answer.tripped)
        for at, value in enumerate(answer.action, row * self.actuators):
            self._last[at] = value
            if value < self._low[at]:
                self._low[at] = value
            elif value > self._high[at]:
                self._high[at] = value

    def newest_ns(self) -> int | None:
        """When the newest slot began; None without one."""
        return self._at[(self.begun - 1) % self.capacity] if len(self) else None

    def steps_since(self, ns: int) -> int:
        """Steps of slots that began at ``ns`` or later."""
        count = 0
        for index in range(self.begun - 1, self.oldest - 1, -1):
            row = index % self.capacity
            if self._at[row] < ns:
                break
            count += self._steps[row]
        return count

    def read(self, index: int) -> Slot:
        """The slot of that index, one of those that are kept."""
        row = index % self.capacity
        values = slice(row * self.actuators, (row + 1) * self.actuators)
        return Slot(
            index, self._at[row], self._act[row], self._late[row], self._tripped[row],
            self._steps[row], self._source[row], self._breakers[row],
            self._low[values].tolist(), self._high[values].tolist(), self._last[values].tolist(),
        )  # fmt: skip

    def __iter__(self) -> Iterator[Slot]:
        return map(self.read, range(self.oldest, self.begun))


def _beyond(ranks: dict[str, int], name: str, other: str) -> bool:
    return ranks.get(name, len(ranks)) > ranks.get(other, len(ranks))


def _bits(levels: tuple[int, ...]) -> int:
    bits = 0
    for level in levels:
        bits |= 1 << level
    return bits


def short(values: tuple[float, ...] | list[float]) -> list[float]:
    """More digits than a float32 holds would only be sent for nothing."""
    return [round(value, 6) for value in values]
