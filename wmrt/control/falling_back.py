"""The user's fallback, asked at most once per step, and what it answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: (state or None when the input is unfit, last action sent) -> action to ramp to.
Fallback = Callable[[Mapping[str, Any] | None, tuple[float, ...]], Sequence[float]]


class Asked:
    """Keeps for the record what ``fallback`` gave.

    Attributes:
        answer: in this step: its numbers, the name of what it raised, or None if it was not asked.
    """

    answer: tuple[float, ...] | str | None = None

    def __init__(self, fallback: Fallback | None) -> None:
        self.fallback = fallback

    def goal(
        self, state: Mapping[str, Any] | None, last: tuple[float, ...]
    ) -> Callable[[], Sequence[float]] | None:
        """What the breakers may call in this step; None without a fallback."""
        fallback = self.fallback
        if fallback is None:
            return None

        def ask() -> Sequence[float]:
            try:
                given = fallback(None if state is None else dict(state), last)
                self.answer = tuple(float(value) for value in given)
            except BaseException as error:
                self.answer = type(error).__name__
                raise
            return self.answer

        return ask
