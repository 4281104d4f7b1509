"""Token buckets: how many messages a second, by client."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

#: Clients remembered; the one that was heard of longest ago is forgotten first.
KEYS = 4096


class Buckets:
    """A bucket for each key, full at first. Any thread.

    Args:
        rate: tokens a second. burst: what a bucket holds.
        now: seconds, ascending.
    """

    def __init__(
        self, rate: float, burst: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate, self.burst, self._now = rate, burst, now
        self._taking = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> bool:
        """Take a token from ``key``'s bucket; False if it is empty."""
        with self._taking:
            return self._take(key, self._now())

    def _take(self, key: str, now: float) -> bool:
        held, at = self._buckets.pop(key, (self.burst, now))
        held = min(self.burst, held + (now - at) * self.rate)
        ok = held >= 1.0
        self._buckets[key] = (held - 1.0 if ok else held, now)
        if len(self._buckets) > KEYS:
            self._buckets.popitem(last=False)
        return ok

    def forget(self, key: str) -> None:
        """Its client is gone and does not come back under this name."""
        with self._taking:
            self._buckets.pop(key, None)
