"""What a block of steps leaves behind: when each began, how long it took, what disturbed it."""

from __future__ import annotations

import resource
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from wmrt.core.pace import Pacer, Timer
from wmrt.runtime.bench.arms import Arm

#: From the start of a paced block to its first tick.
LEAD_NS = 2_000_000


class Usage(NamedTuple):
    """Counters of a process since it began."""

    switches: int
    major_faults: int
    minor_faults: int


def process_usage() -> Usage:
    """Involuntary context switches and page faults of every thread of this process.

    RUSAGE_SELF and not RUSAGE_THREAD: a step waits for the slowest of its threads, whichever of
    them was interrupted.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Usage(used.ru_nivcsw, used.ru_majflt, used.ru_minflt)


class Recording:
    """Columns of whole numbers, one row a step, allocated before the first.

    * ``begin``, ``duration``: nanoseconds of the step's start and its length
    * ``late``: nanoseconds from the tick to the start, 0 back to back
    * ``skipped``: ticks that went by since the step before because that one ran over them
    * ``switches``, ``major_faults``, ``minor_faults``: since the step before ended
    * ``round``: which block the step belongs to
    * a column for each of the arm's segments, read after each step by ``read_segments``
    """

    _COLUMNS = (
        *("begin", "duration", "late", "skipped"),
        *("switches", "major_faults", "minor_faults", "round"),
    )

    def __init__(
        self,
        capacity: int,
        segments: Sequence[str] = (),
        read_segments: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self.steps = 0
        self._read_segments = read_segments
        empty = bytes(8 * capacity)
        self._columns = {name: array("q", empty) for name in self._COLUMNS}
        self._segments = {name: array("q", empty) for name in segments}

    def add(self, row: Sequence[int]) -> None:
        """One step: values in the order of the columns. IndexError beyond the capacity."""
        segments = self._read_segments()
        for column, value in zip(self._columns.values(), row, strict=True):
            column[self.steps] = value
        for column, value in zip(self._segments.values(), segments, strict=True):
            column[self.steps] = value
        self.steps += 1

    def column(self, name: str) -> array[int]:
        """The values of one column so far."""
        return self._columns[name][: self.steps]

    def segment(self, name: str) -> array[int]:
        """Nanoseconds of one of the arm's segments, step by step."""
        return self._segments[name][: self.steps]

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self._segments)

    def rounds(self) -> dict[int, list[int]]:
        """Durations in nanoseconds by round, in order."""
        found: dict[int, list[int]] = {}
        for index, duration in zip(self.column("round"), self.column("duration"), strict=True):
            found.setdefault(index, []).append(duration)
        return found


@dataclass(frozen=True)
class Block:
    """Steps taken in one go.

    Args:
        index: of its round.
        steps: recorded, after ``settle`` steps that are not.
        rate: in Hz, or None for back to back.
    """

    index: int
    steps: int
    settle: int
    rate: Fraction | None = None


def record_block(
    arm: Arm,
    block: Block,
    recording: Recording,
    timer: Timer,
    usage: Callable[[], Usage] = process_usage,
) -> None:
    """Take the steps of ``block``. A paced step that runs over its next ticks skips them: the one
    after begins at the first tick still to come."""
    pacer = None if block.rate is None else Pacer(timer, block.rate, LEAD_NS)
    before = usage()
    for n in range(-block.settle, block.steps):
        if pacer is None:
            due = begin = timer.now_ns()
            skipped = 0
        else:
            due, begin, skipped = pacer.wait()
        arm.step()
        end = timer.now_ns()
        after = usage()
        if n >= 0:
            spent = (now - then for now, then in zip(after, before, strict=True))
            recording.add((begin, end - begin, begin - due, skipped, *spent, block.index))
        before = after
