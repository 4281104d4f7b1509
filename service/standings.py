"""Writes where robots' breakers stand, at once and in a thread of its own.

A snapshot of a memory is copied between two steps, and waits for one that runs: a policy that hangs
is what a process is killed for, and its robot's breakers, which have opened meanwhile, must not be
closed by that. So they have a file of their own, for which nobody is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import NamedTuple

from wmrt.core.errors import UsageError, WmrtError
from wmrt.service.audit import Audit
from wmrt.service.leases import Lease
from wmrt.service.logs import log
from wmrt.service.memories import Standing
from wmrt.service.refusals import Refusal
from wmrt.service.snapshots import SnapshotStore

#: Seconds until a disk that would not take one is tried again.
AGAIN = 1.0


class _Job(NamedTuple):
    standing: Standing
    lease: Lease | None
    done: Future[None] | None = None


class Standings:
    """Keeps the last one of each robot on disk.

    Args:
        lost: called when another process turns out to have taken a robot; in the thread.

    Attributes:
        written: how many.
        waiting: robots whose last one the disk would not take, with the reason.
    """

    def __init__(self, store: SnapshotStore, lost: Callable[[Lease], object], audit: Audit) -> None:
        self._store, self._lost, self._audit = store, lost, audit
        self._queue: SimpleQueue[_Job | threading.Event | None] = SimpleQueue()
        self._failed: dict[str, _Job] = {}
        self.written = 0
        self.waiting: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="wmrt-standings", daemon=True)
        self._thread.start()

    def put(self, standing: Standing, lease: Lease | None) -> None:
        """Keep it. Any thread, never waits."""
        self._queue.put(_Job(standing, lease))

    def written_by(self, standing: Standing, lease: Lease | None) -> Future[None]:
        """Keep it, and tell when it is on disk. Any thread.

        The future raises:
            Refusal: moved: another process has the robot. WmrtError: the disk would not take it.
        """
        done: Future[None] = Future()
        self._queue.put(_Job(standing, lease, done))
        return done

    def settle(self, seconds: float = 5.0) -> bool:
        """Wait until what was put is on disk, or was refused; False after so long."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(seconds)

    def close(self) -> None:
        """Write what is waiting, and try once more what the disk would not take; then end."""
        self._queue.put(None)
        self._thread.join(5.0)

    def _run(self) -> None:
        due: float | None = None  # when those that failed are tried again, whatever else comes
        while True:
            try:
                wait = None if due is None else max(0.0, due - time.monotonic())
                job = self._queue.get(timeout=wait)
            except Empty:
                due = None
                self._try_again()
            else:
                if job is None:
                    self._try_again()
                    return
                if isinstance(job, threading.Event):
                    job.set()
                else:
                    _tell(job.done, self._write(job))
            if due is None and self._failed:
                due = time.monotonic() + AGAIN

    def _try_again(self) -> None:
        for failed in list(self._failed.values()):
            self._write(failed)

    def _write(self, job: _Job) -> WmrtError | None:
        """Write it; why not, if it could not be."""
        robot = job.standing.robot
        self._failed.pop(robot, None)
        try:
            self._store.write_standing(job.standing, job.lease)
        except Refusal as refusal:  # it is another process's to keep
            self.waiting.pop(robot, None)
            if job.lease is not None:
                self._lost(job.lease)
            return refusal
        except WmrtError as error:
            self._failed[robot] = job
            if robot not in self.waiting:
                self._audit.note("standing_failed", robot=robot, reason=str(error)[:300])
            self.waiting[robot] = str(error)
            return error
        except Exception as error:  # a fault of ours must not end the thread
            self.waiting[robot] = type(error).__name__
            log.exception("where breakers stand was not kept", robot=robot)
            return UsageError(f"where the breakers of robot {robot} stand was not kept")
        self.waiting.pop(robot, None)
        self.written += 1
        return None


def _tell(done: Future[None] | None, error: WmrtError | None) -> None:
    if done is None or not done.set_running_or_notify_cancel():
        return  # nobody waits, or no more
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
