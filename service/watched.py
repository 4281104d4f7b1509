"""A policy that others can look at while it works."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from wmrt.service.seats import Seat


class Watched:
    """A seat, for its controller: it notes since when it has been at a step, and what failed.

    Attributes:
        failures: steps that have raised since the last one that did not. error: of the last one.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._since: float | None = None
        self.failures = 0
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seat, name)  # schema, actions, provenance, reset

    def step(self, state: Mapping[str, Any], previous_action: Any) -> Any:
        self._since = time.monotonic()
        try:
            step = self._seat.step(state, previous_action)
        except Exception as error:
            self.error = error
            self.failures += 1
            raise
        finally:
            self._since = None
        self.failures = 0
        return step

    def running(self) -> float:
        """Seconds since the step that runs began; 0 if none does. Any thread may ask."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since
