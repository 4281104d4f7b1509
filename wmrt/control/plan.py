"""The last chunk that came in time: what to send when a step is late."""

from __future__ import annotations


class Plan:
    """Actions planned by the last step that was in time and in range.

    Args:
        max_age: a planned action is used at most so many steps after the chunk was made.
    """

    def __init__(self, max_age: int) -> None:
        self.rows = max_age + 1
        self.clear()

    def clear(self) -> None:
        self._chunk: tuple[tuple[float, ...], ...] = ()
        self._age = 0

    def store(self, chunk: tuple[tuple[float, ...], ...]) -> None:
        """Row 0 of ``chunk`` is the action of this step."""
        self._chunk = chunk[: self.rows]
        self._age = 0

    def tick(self) -> None:
        """A control step begins."""
        self._age += 1

    def action(self) -> tuple[float, ...] | None:
        """The action planned for this step; None when the chunk is too old or too short."""
        return self._chunk[self._age] if self._age < len(self._chunk) else None
