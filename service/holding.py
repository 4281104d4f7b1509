"""Whether robots are still this process's, by what their records said a moment ago.

No action may leave for a robot that another process has taken, so every answer asks. A record lies
on a disk that may be a file server's: it is read beside the robots' threads, again and again, and
answers go by that while it is younger than `FRESH`. Whoever takes a robot from a living owner
waits for longer than that before its first step. What is older is worth nothing: the record is read
then and there, unless that hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from wmrt.service.leases import Lease, Leases

T = TypeVar("T")
#: Seconds for which a reading counts. A robot whose owner hangs waits for as much longer.
FRESH = 0.5
#: Of that, the part after which a look reads a record again: 10 times a second.
AGAIN = 0.2
#: Seconds to wait after a robot was taken by force: an answer that was allowed is on its way then.
OVER = 1.1 * FRESH
_NEVER = float("-inf")


class Hold:
    """A lease that this process goes by.

    Attributes:
        at: seconds, just before the record was last found to be this process's. lost: called when
            it is found to be another's.
        over: it was let go; whatever is read of it now counts for nothing later.
    """

    __slots__ = ("at", "lease", "lost", "over")

    def __init__(self, lease: Lease, lost: Callable[[], object]) -> None:
        self.lease, self.lost, self.at, self.over = lease, lost, _NEVER, False

    def fresh(self) -> bool:
        """Whether the last reading still counts: 0.1 us of every answer."""
        return not self.over and time.monotonic() - self.at < FRESH


class Holds:
    """What `look` has read of all leases of one process.

    Args:
        told: is given a robot, and why its record cannot be read, once until it can again.

    Attributes:
        failed: readings that could not be had. reason: why the last look's could not; else empty.
    """

    def __init__(self, leases: Leases, told: Callable[[str, str], object]) -> None:
        self._leases, self._told = leases, told
        self._held: dict[Lease, Hold] = {}
        self._since: float | None = None
        self.failed, self.reason = 0, ""

    def add(self, lease: Lease, lost: Callable[[], object]) -> Hold:
        """Go by ``lease`` from here on. ``lost``: called when another process has the robot, in
        whatever thread has read that; more than once."""
        self._held[lease] = hold = Hold(lease, lost)
        return hold

    def drop(self, lease: Lease) -> None:
        """Before it is let go."""
        hold = self._held.pop(lease, None)
        if hold is not None:
            hold.over = True

    def look(self, then: Callable[[], T]) -> T:
        """Read the records that are due, and whatever else of the folder; one thread, which may
        hang in it."""
        self._since, failed = time.monotonic(), self.failed
        try:
            due = self._since - AGAIN * FRESH
            for hold in list(self._held.values()):
                if hold.at < due:
                    self._read(hold)
            if self.failed == failed:
                self.reason = ""
            return then()
        finally:
            self._since = None

    def hangs(self) -> float:
        """Seconds that the look that is under way has taken; 0 if none is. Any thread."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def ask(self, hold: Hold) -> bool | None:
        """Whether a robot is still this process's, read now; None if nobody can tell. Any thread;
        it does not wait where the look hangs."""
        return None if self.hangs() > FRESH / 2 else self._read(hold)

    def _read(self, hold: Hold) -> bool | None:
        began = time.monotonic()
        try:
            ours = self._leases.holds(hold.lease)
        except OSError as error:  # which says nothing of whose it is
            self.failed += 1
            if not self.reason:
                self._told(hold.lease.robot, str(error))
            self.reason = str(error)
            return None
        hold.at = began if ours else _NEVER
        if not ours and not hold.over:  # nobody may ever ask this process for an answer again
            hold.lost()
        return ours
