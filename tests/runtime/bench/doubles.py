"""A machine made up for the tests of the bench: its clock, its steps, its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wmrt.runtime.bench.floor import Floor
from wmrt.runtime.bench.record import Recording, Usage


class FakeTimer:
    """Moves only when told, when slept on, and a little with every look at it.

    ``oversleep`` is added to every sleep, ``look`` to every reading.
    """

    def __init__(self, start: int = 0, oversleep: int = 0, look: int = 1) -> None:
        self.now, self.oversleep, self.look = start, oversleep, look
        self.slept: list[int] = []

    def now_ns(self) -> int:
        self.now += self.look
        return self.now

    def sleep_ns(self, duration: int) -> None:
        self.slept.append(duration)
        self.now += duration + self.oversleep


class FakeArm:
    """Every step takes the next of ``durations`` (the last one for ever after) on a fake clock."""

    recipe, read_bytes = "nvfp4", 1_000_000
    detail: Mapping[str, Any] = {}

    def __init__(
        self, timer: FakeTimer, durations: Sequence[int], name: str = "fake", threads: int = 1
    ) -> None:
        self.name, self.threads = name, threads
        self._timer = timer
        self._durations = self._each(durations)
        self.taken: list[tuple[str, int]] = []
        self.closed = 0

    @staticmethod
    def _each(durations: Sequence[int]) -> Iterator[int]:
        yield from durations
        while True:
            yield durations[-1]

    def step(self) -> None:
        self.taken.append((self.name, self._timer.now))
        self._timer.now += next(self._durations)

    def close(self) -> None:
        self.closed += 1


class FakeUsage:
    """Counters that go up by the next of ``steps`` between two readings."""

    def __init__(self, steps: Sequence[Usage] = ()) -> None:
        self._steps = [Usage(0, 0, 0), *steps]
        self._total = Usage(0, 0, 0)

    def __call__(self) -> Usage:
        more = self._steps.pop(0) if self._steps else Usage(0, 0, 0)
        self._total = Usage(*(a + b for a, b in zip(self._total, more, strict=True)))
        return self._total


class FakeStream:
    """Reads its buffer in the next of ``times`` nanoseconds, the last one for ever after."""

    def __init__(self, size: int, times: Sequence[int]) -> None:
        self.size = size
        self._times = list(times)

    def read_ns(self, threads: int) -> int:
        return self._times.pop(0) if len(self._times) > 1 else self._times[0]


def quiet_floor(threads: Sequence[int] = (1,), nanoseconds: int = 1_000_000) -> Floor:
    """A floor whose samples are all the same: 100 MB in a millisecond, so 100 GB/s."""
    floor = Floor(FakeStream(100_000_000, [nanoseconds]), threads)
    floor.sample("before", 15)
    floor.sample("after", 15)
    return floor


def recorded(
    durations: Sequence[int],
    *,
    late: Sequence[int] = (),
    skipped: Sequence[int] = (),
    switches: Sequence[int] = (),
    major: Sequence[int] = (),
    minor: Sequence[int] = (),
    rounds: int = 1,
) -> Recording:
    """A recording of these steps; what is not given is 0."""
    count = len(durations)
    columns = [list(given) or [0] * count for given in (late, skipped, switches, major, minor)]
    recording = Recording(count)
    for index, (duration, *rest) in enumerate(zip(durations, *columns, strict=True)):
        recording.add((index, duration, *rest, index * rounds // count))
    return recording
