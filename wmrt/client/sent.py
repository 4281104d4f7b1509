"""When observations were sent, for round trips."""

from __future__ import annotations

import time
from collections import deque

#: Observations that are remembered. Whoever sends and never receives would pile them up for ever;
#: of answers that nobody reads, no more fit between two sockets.
SENT = 4096


class Sent:
    """Times of the newest `SENT` observations, by their sequence."""

    def __init__(self) -> None:
        self._times: deque[tuple[int, int]] = deque(maxlen=SENT)

    def __len__(self) -> int:
        return len(self._times)

    def note(self, sequence: int, now_ns: int) -> None:
        """It is sent, or sent again."""
        self._times.append((sequence, now_ns))

    def since(self, sequence: int) -> int:
        """Nanoseconds since it was sent; forgets it and older ones. For one that is not remembered
        any more, since the oldest that is: it took longer than that."""
        now = time.monotonic_ns()
        at = self._times[0][1] if self._times else now
        while self._times and self._times[0][0] <= sequence:
            at = self._times.popleft()[1]
        return now - at
