"""Where a policy's thread waits for its next question: at its robot's socket itself, and for others
who bring one.

With nobody in between, a message wakes the thread that steps, and not one that has to wake it: on a
2-core machine that took 105 us.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref
from typing import Protocol

from wmrt.control import Bell
from wmrt.kernels.native.library import library

#: Whether this system has what it takes.
POSSIBLE = hasattr(select, "epoll") and hasattr(os, "eventfd")


def _look(first: int, second: int, spin_ns: int) -> int:
    """`wmrt_wait` of the native library, without its spinning."""
    poll = select.poll()
    poll.register(first, select.POLLIN)
    if second >= 0:
        poll.register(second, select.POLLIN)
    found = 0
    for file, _ in poll.poll():
        found |= 1 if file == first else 2
    return found


class Source(Protocol):
    """A socket that brings questions."""

    def watch(self) -> int:
        """The thread is about to wait: the descriptor that wakes it, -1 for none."""

    def take_in(self) -> None:
        """It was woken by that: there is something to read. Must not raise."""

    def unwatch(self) -> None:
        """It is about to do something else than to wait."""


class Doorbell(Bell):
    """For one policy's thread; it may `wait`, everybody may do the rest.

    Args:
        spin: seconds for which it looks again and again before it sleeps, outside of Python's
            interpreter lock: in Python itself it would keep the event loop from it.

    Raises:
        UnsupportedError: to spin takes the native library, and it cannot be had.
    """

    def __init__(self, spin: float = 0.0) -> None:
        super().__init__()
        self._spin_ns = round(spin * 1e9)
        self._look = _look if self._spin_ns == 0 else library().wmrt_wait
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Whoever rings late must not meet another file. Not at the process's end, where the worker
        # is still to be stopped, by ringing.
        weakref.finalize(self, os.close, self._event).atexit = False
        self._source: Source | None = None
        self._thread: int | None = None

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

    def mine(self) -> bool:
        """Whether the caller is the thread that waits here."""
        return threading.get_ident() == self._thread

    def busy(self) -> None:
        """The thread has something to do, or is about to: whoever else reads the source is to be
        woken by it until the next `wait`. Any thread."""
        source = self._source
        if source is not None:
            source.unwatch()

    def wait(self) -> None:
        self._thread = threading.get_ident()
        source = self._source
        file = -1 if source is None else source.watch()
        woken = self._look(self._event, file, self._spin_ns)
        if woken & 1:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._event)
        if source is None or file < 0:
            return
        if woken & 2:
            source.take_in()
        else:
            source.unwatch()
