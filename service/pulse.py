"""Whether the event loop keeps its appointments."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from wmrt.service.meter import Histogram

#: Seconds between two appointments: 10 wake-ups a second cost 0.03% of a processor here.
EVERY = 0.1
#: Appointments that are remembered, and those of which all have to be late for the loop to be.
MEMORY, IN_A_ROW = 100, 5


class Pulse:
    """Measures by how much the event loop is late.

    Args:
        lag: gets every measurement.
    """

    def __init__(self, lag: Histogram) -> None:
        self._lag = lag
        self._recent: deque[float] = deque([0.0] * IN_A_ROW, maxlen=MEMORY)

    @property
    def worst(self) -> float:
        """The most it was late, seconds, at the last hundred appointments."""
        return max(self._recent)

    @property
    def steady(self) -> float:
        """What it was late at each of the last five, seconds: one stall does not count."""
        return min(list(self._recent)[-IN_A_ROW:])

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            due = time.perf_counter_ns() + round(EVERY * 1e9)
            await asyncio.sleep(EVERY)
            late = max(0, time.perf_counter_ns() - due)
            self._lag.observe(late)
            self._recent.append(late * 1e-9)
