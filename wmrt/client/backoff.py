"""How long to wait before trying again."""

from __future__ import annotations

import random

from wmrt.core.errors import UsageError


class Backoff:
    """Waits that double, with jitter, so that a fleet does not return all at once.

    Args:
        first, longest: seconds.
        jitter: part of each wait that is drawn at random, 0 to 1.
        seed: of the jitter; None draws one.

    Raises:
        UsageError: waits that are no waits.
    """

    def __init__(
        self,
        first: float = 0.02,
        longest: float = 2.0,
        jitter: float = 0.5,
        seed: int | None = None,
    ) -> None:
        if not (0 < first <= longest < float("inf") and 0 <= jitter <= 1):
            raise UsageError(
                f"back-off from {first} to {longest} s with jitter {jitter}: 0 < first <= longest, "
                "jitter in 0 to 1"
            )
        self.first, self.longest, self.jitter = first, longest, jitter
        self._random = random.Random(seed)
        self._next = first

    def wait(self) -> float:
        """Seconds to wait now; the next wait is twice as long."""
        full, self._next = self._next, min(2 * self._next, self.longest)
        return full * (1 - self.jitter * self._random.random())

    def reset(self) -> None:
        """It worked: begin anew."""
        self._next = self.first
