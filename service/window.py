"""The last samples of a duration, always in order: percentiles of a running service for nothing."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from typing import Any

from wmrt.core.measure import P999_MIN_SAMPLES, ordered_summary

#: Bins of a histogram per factor of ten.
BINS_PER_DECADE = 12
#: What is shorter, in ms, counts as this long in a histogram.
_SHORTEST = 1e-4


class Window:
    """The last ``size`` durations, ms. A new one costs 4 us in a full window of 10,000; sorting all
    of them for whoever looks would hold up every thread for 1 ms each time.

    Args:
        size: enough for p99.9 by default.

    Attributes:
        ordered: ascending.
    """

    def __init__(self, size: int = P999_MIN_SAMPLES) -> None:
        self.size = size
        # Not of objects: 80,000 floats that live for a quarter of an hour, between others that live
        # for a moment, leave holes; Python's memory grew by 2 MB until all were replaced once.
        self.ordered = array("d")
        self._recent, self._oldest = array("d"), 0

    def add(self, ms: float) -> None:
        """Take one in; the oldest one goes if the window is full."""
        if len(self._recent) < self.size:
            self._recent.append(ms)
        else:
            del self.ordered[bisect_left(self.ordered, self._recent[self._oldest])]
            self._recent[self._oldest] = ms
            self._oldest = (self._oldest + 1) % self.size
        insort(self.ordered, ms)

    def summary(self) -> dict[str, float | int | None]:
        """See `wmrt.core.measure.summary`."""
        return ordered_summary(self.ordered)

    def histogram(self) -> dict[str, Any]:
        """Counts in bins of equal width on a logarithmic axis, from the shortest to the longest.

        Bin ``i`` holds durations from ``10 ** ((first + i) / per_decade)`` ms to the next bin's.
        """
        counts: list[int] = []
        first = 0
        if self.ordered:
            first, last = (_bin(self.ordered[i]) for i in (0, -1))
            below = 0
            for k in range(first, last):
                upto = bisect_left(self.ordered, 10.0 ** ((k + 1) / BINS_PER_DECADE), lo=below)
                counts.append(upto - below)
                below = upto
            counts.append(len(self.ordered) - below)
        return {"first": first, "per_decade": BINS_PER_DECADE, "counts": counts}


def _bin(ms: float) -> int:
    return math.floor(BINS_PER_DECADE * math.log10(max(ms, _SHORTEST)))
