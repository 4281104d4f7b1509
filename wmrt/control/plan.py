"""The last chunk that came in time: what to send when a step is late."""

from __future__ import annotations


class Plan:
    """Actions planned by the last step that was in time and in range.

    Args:
        max_age: a planned action is used at most so many steps of the policy after the chunk was
            made.
        period_ns: control period.
        every: control periods in one of the policy's.
    """

    def __init__(self, max_age: int, period_ns: int, every: int = 1) -> None:
        self.rows = max_age + 1
        self.every = every
        self._period_ns = period_ns
        self._now_ns: int | None = None
        self.clear()

    def clear(self) -> None:
        self._chunk: tuple[tuple[float, ...], ...] = ()
        self._age = 0

    def store(self, chunk: tuple[tuple[float, ...], ...]) -> None:
        """Row 0 of ``chunk`` is the action of this step."""
        self._chunk = chunk[: self.rows]
        self._age = 0

    def tick(self, now_ns: int) -> None:
        """A control step begins: a period has passed, or more if cycles were skipped."""
        last, self._now_ns = self._now_ns, now_ns
        periods = 1 if last is None else (now_ns - last + self._period_ns // 2) // self._period_ns
        self._age += max(1, periods)

    def action(self) -> tuple[float, ...] | None:
        """The action planned for this step; None when the chunk is too old or too short."""
        row = self._age // self.every
        return self._chunk[row] if row < len(self._chunk) else None
