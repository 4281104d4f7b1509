"""A thread that rings at a deadline, and is not woken to be told of one."""

from __future__ import annotations

import _thread
import math
import threading
from collections.abc import Callable
from typing import Any

from wmrt.control.worker import release


class Alarm:
    """Rings for whatever is armed when its time has come.

    Arming is two assignments: every deadline is ``span`` from when it is armed, so a thread that
    looks once a ``span`` is never late, and only a thread that has found nothing to do twice has to
    be woken. Waking a thread at every step cost 20 to 50 us.

    The thread starts with the first `arm`, and holds no reference to what is not armed any more.

    Args:
        ring: called in the thread with what is armed; must not raise.
        span: nanoseconds from `arm` to the deadline.
        timer: nanoseconds.
        prepare: called in the thread before anything else, such as for its priority.
    """

    def __init__(
        self,
        ring: Callable[[Any], object],
        span: float,
        timer: Callable[[], int],
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self._ring, self._span, self._timer, self._prepare = ring, span, timer, prepare
        self._armed: tuple[float, Any, int] | None = None
        self._number = 0  # of what is armed
        self._wakes_at = -math.inf  # it will look again by then, whatever happens
        self._pressed = -1  # number of what is to ring at once
        self._stopped = False
        self._wake = _thread.allocate_lock()
        self._wake.acquire()
        self._thread: threading.Thread | None = None

    def arm(self, until: float, what: Any) -> None:
        """Ring for ``what`` when the timer reads ``until``, instead of what was armed before.
        RuntimeError where its thread cannot be started."""
        self._number += 1
        self._armed = (until, what, self._number)
        if self._thread is None and not self._stopped:
            thread = threading.Thread(target=self._run, name="wmrt-deadline", daemon=True)
            thread.start()
            self._thread = thread  # one that could not be started is tried again
        elif self._wakes_at > until:
            release(self._wake)

    def disarm(self) -> None:
        """It is in time."""
        self._armed = None

    def ring(self) -> None:
        """Ring now for what is armed, if anything is. Any thread may call it; it does not wait."""
        self._pressed = self._number
        release(self._wake)

    def stop(self) -> None:
        """End the thread; it waits for nothing."""
        self._stopped = True
        release(self._wake)

    def _run(self) -> None:
        self._prepare()
        idle = before = 0
        while not self._stopped:
            armed, now = self._armed, self._timer()
            idle = 0 if self._number != before else idle + 1
            before = self._number
            if armed is not None:
                wakes_at: float = armed[0]
            else:
                wakes_at = math.inf if idle > 1 else now + self._span
            self._wakes_at = wakes_at
            if self._number != before:  # whoever armed it may not have seen `_wakes_at`
                continue
            armed = None  # an alarm that sleeps keeps nothing alive
            told = self._wait((wakes_at - now) * 1e-9)
            armed = self._armed
            if armed is not None and (
                armed[2] == self._pressed or (not told and armed[2] == before)
            ):
                self._armed = None
                self._ring(armed[1])
            armed = None

    def _wait(self, seconds: float) -> bool:
        """Until it is told to look, or for so long."""
        if seconds <= 0:
            return self._wake.acquire(False)
        return self._wake.acquire(True, min(seconds, threading.TIMEOUT_MAX))
