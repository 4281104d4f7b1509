"""A lock that one thread takes and another one gives back."""

from __future__ import annotations

import threading


class Turn:
    """Whose turn it is. A thread may enter again what it has entered.

    Between `suspend` and `resume` it is nobody's, and everybody waits: a control step is begun by
    one thread and decided by another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self.depth = 0

    def __enter__(self) -> Turn:
        self.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def enter(self) -> None:
        """Wait for the turn."""
        me = threading.get_ident()
        if self._owner != me:
            self._lock.acquire()
            self._owner = me
        self.depth += 1

    def leave(self) -> None:
        """End it, once for every `enter`."""
        self.depth -= 1
        if not self.depth:
            self._owner = None
            self._lock.release()

    def suspend(self) -> None:
        """Nobody's, until `resume`."""
        self._owner = None

    def resume(self) -> None:
        """Go on where `suspend` was called, in this thread; by one thread only."""
        self._owner = threading.get_ident()
