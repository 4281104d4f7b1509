"""Where a policy's thread waits for its next question: at its robot's socket itself, and for others
who bring one.

With nobody in between, a message wakes the thread that steps, and not one that has to wake it: on a
2-core machine that took 105 us.
"""

from __future__ import annotations

import contextlib
import os
import select
import weakref
from typing import Protocol

from wmrt.control import Bell

#: Whether this system has what it takes.
POSSIBLE = hasattr(select, "epoll") and hasattr(os, "eventfd")


class Source(Protocol):
    """A socket that brings questions."""

    def watch(self) -> int:
        """The thread is about to wait: the descriptor that wakes it, -1 for none."""

    def take_in(self) -> None:
        """It was woken by that: there is something to read. Must not raise."""

    def unwatch(self) -> None:
        """It was woken by somebody else, and is about to do what that one wants."""


class Doorbell(Bell):
    """For one policy's thread; it may `wait`, everybody may do the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._event)  # whoever rings late must not meet another
        self._source: Source | None = None

    def attach(self, source: Source) -> None:
        """Wait for ``source`` too, from the next time on, instead of another one."""
        self._source = source

    def detach(self, source: Source) -> None:
        """Do not wait for ``source`` any more; a wait for it ends now."""
        if self._source is source:
            self._source = None
        self.ring()

    def ring(self) -> None:
        os.eventfd_write(self._event, 1)

    def wait(self) -> None:
        source = self._source
        file = -1 if source is None else source.watch()
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        if file >= 0:
            poll.register(file, select.POLLIN)
        woken = [one for one, _ in poll.poll()]
        if self._event in woken:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._event)
        if source is None or file < 0:
            return
        if file in woken:
            source.take_in()
        else:
            source.unwatch()
