"""Durations in a ring that never grows."""

from __future__ import annotations

from array import array

import numpy as np

from wmrt.core import measure


class Durations:
    """The last ``capacity`` durations in nanoseconds; 8 bytes each, allocated at the start."""

    def __init__(self, capacity: int = 1 << 15) -> None:
        self._ring = array("q", bytes(8 * capacity))
        self._capacity = capacity
        self.total = 0

    def add(self, ns: int) -> None:
        total = self.total
        self._ring[total % self._capacity] = ns
        self.total = total + 1

    def values(self) -> list[int]:
        """Oldest first."""
        size = len(self._ring)
        if self.total <= size:
            return self._ring[: self.total].tolist()
        first = self.total % size
        return self._ring[first:].tolist() + self._ring[:first].tolist()

    def summary_ms(self) -> dict[str, float | int | None]:
        """`wmrt.core.measure.summary` of the durations held, in milliseconds.

        There is no object for each: those of a full ring took 3 MB at once, of which a service's
        memory kept what another one came to lie in, and held a robot's thread for 9 ms, not 1.4.
        """
        held = np.frombuffer(self._ring, np.int64)[: self.total]
        return measure.ordered_summary(array("d", (np.sort(held) * 1e-6).tobytes()))


class Streak:
    """Length of the current run of true steps, and of the longest."""

    def __init__(self) -> None:
        self.now = self.longest = self.total = 0

    def add(self, hit: bool) -> None:
        self.now = self.now + 1 if hit else 0
        self.total += hit
        self.longest = max(self.longest, self.now)
