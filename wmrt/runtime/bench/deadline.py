"""Steps that came too late, how many in a row, and why where it can be told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from wmrt.core import measure
from wmrt.runtime.bench.record import Recording

_RULE = "the median step is above the deadline"
_OVERRUN = "the step before ran over"
_MAJOR, _MINOR = "major page fault", "minor page faults"
_SWITCH, _LATE, _UNKNOWN = "involuntary context switch", "late wake-up", "unknown"
#: In the order in which they are looked for: the first that applies is the cause.
CAUSES = (_RULE, _OVERRUN, _MAJOR, _SWITCH, _LATE, _MINOR, _UNKNOWN)


@dataclass(frozen=True)
class Misses:
    """Of one arm against one deadline.

    * ``steps``: indices of the steps that ended after it
    * ``streak``: the longest run of them
    * ``causes``: cause to count, of `CAUSES`
    """

    deadline_ns: int
    steps: tuple[int, ...]
    streak: int
    causes: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {"longest_streak": self.streak, "causes": dict(self.causes)}


def find_misses(recording: Recording, deadline_ns: int) -> Misses:
    """Steps whose end lies more than ``deadline_ns`` after their tick (back to back: their start).

    A run of misses goes on over the border of two rounds.
    """
    names = ("late", "duration", "skipped", "major_faults", "switches", "minor_faults")
    columns = [recording.column(name) for name in names]
    missed = [a + b > deadline_ns for a, b in zip(columns[0], columns[1], strict=True)]
    steps = tuple(index for index, miss in enumerate(missed) if miss)
    slow = bool(steps) and measure.median(columns[1]) > deadline_ns
    rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    causes = Counter(
        _RULE if slow else _cause(row, deadline_ns)
        for row, miss in zip(rows, missed, strict=True)
        if miss
    )
    ordered = {cause: causes[cause] for cause in CAUSES if causes[cause]}
    return Misses(deadline_ns, steps, measure.longest_streak(missed), ordered)


def _cause(row: dict[str, int], deadline_ns: int) -> str:
    if row["skipped"]:
        return _OVERRUN
    if row["major_faults"]:
        return _MAJOR
    if row["switches"]:
        return _SWITCH
    if row["duration"] <= deadline_ns:
        return _LATE
    return _MINOR if row["minor_faults"] else _UNKNOWN
