"""Capture times of another machine, on this one's clock."""

from __future__ import annotations

#: How long the fastest message speaks for the distance between two clocks. Drift within it, at the
#: 50 ppm of a bad crystal, is 1.5 ms.
WINDOW_NS = 30_000_000_000


class ClockMap:
    """Turns a sender's monotonic readings into the receiver's.

    Two monotonic clocks differ by a constant and some drift. The message that took least time, of
    those in the last two windows, comes closest to that constant: every other one was under way or
    in a queue for longer, and what is longer is counted as age. A network that is always slow
    cannot be told from a clock that differs, so its smallest delay is not part of an age.
    """

    def __init__(self) -> None:
        self._before: int | None = None
        self._now: int | None = None
        self._since = 0
        self._last = -(2**63)

    def map(self, captured_ns: int, sent_ns: int, received_ns: int) -> int:
        """``captured_ns`` on the receiver's clock: ascending, and at most ``received_ns``.

        Args:
            captured_ns, sent_ns: on the sender's clock, the first not after the second and after
                that of the message before.
            received_ns: on the receiver's clock, later than that of the message before.
        """
        distance = received_ns - sent_ns
        if self._now is None or received_ns - self._since > WINDOW_NS:
            self._before, self._now, self._since = self._now, distance, received_ns
        else:
            self._now = min(self._now, distance)
        best = self._now if self._before is None else min(self._before, self._now)
        self._last = min(max(captured_ns + best, self._last + 1), received_ns)
        return self._last
