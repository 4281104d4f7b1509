"""One thread that answers questions, always the newest; whoever asks waits as long as he likes.

Raw locks as binary semaphores: `threading.Event` and `queue.Queue` are built from several of these
and cost 10 to 30 us more a step.
"""

from __future__ import annotations

import _thread
import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from wmrt.core.realtime import step_back

#: At exit, seconds that threads are given to end what they do. One that runs native code when the
#: interpreter goes away aborts the process.
_PARTING = 2.0
_workers: weakref.WeakSet[Worker[Any, Any]] = weakref.WeakSet()

Q = TypeVar("Q")
A = TypeVar("A")


class Finished(NamedTuple, Generic[Q, A]):
    """A question and its answer, or what asks the process to stop."""

    question: Q
    answer: A | BaseException


class Bell:
    """What a worker waits at: a binary semaphore, rung or not."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End `wait`, now or the next time. Any thread; it waits for nothing."""
        release(self._lock)

    def wait(self) -> None:
        """Until it is rung; may return without that. Must not raise."""
        self._lock.acquire()


class Worker(Generic[Q, A]):
    """Answers in a thread of its own, which starts with the first question.

    The thread holds no reference to whoever made the worker; `stop` ends it, at once if it is idle,
    else when the answer it works on is done. A thread that is stuck for good is a daemon: it keeps
    the process alive for two seconds and no longer.

    Args:
        answer: (question, restart) -> answer, called in the thread; ``restart`` is true once after
            `restart` was called while it ran. What it raises is handed over.
        name: of the thread.
        deliver: (question, answer) -> whether it was taken, called in the thread; an answer that
            was not, and every one without it, waits for `take`. It must not raise.

    Attributes:
        bell: where the thread waits for questions; may be replaced before the first one.
        finished: answers that wait for `take`.
    """

    def __init__(
        self,
        answer: Callable[[Q, bool], A],
        name: str,
        deliver: Callable[[Q, A | BaseException], bool] | None = None,
    ) -> None:
        self._answer, self._name, self._deliver = answer, name, deliver
        self._thread: threading.Thread | None = None
        self._ident: int | None = None  # of the thread
        self._mutex = _thread.allocate_lock()  # over the four below; never held for long
        self._slot: Q | None = None
        self._busy = self._restart = self._stopped = False
        self.finished: deque[Finished[Q, A]] = deque()
        self.bell = Bell()
        self._told = _thread.allocate_lock()  # released: there is something to see
        self._told.acquire()
        _workers.add(self)

    def ask(self, question: Q) -> Q | None:
        """Put ``question`` into the slot; the one that it replaces there, if any."""
        with self._mutex:
            replaced, self._slot = self._slot, question
            idle = not self._busy
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
        if idle and threading.get_ident() != self._ident:  # else it looks here next
            self.bell.ring()
        return replaced

    def wait(self, seconds: float) -> bool:
        """Until an answer is there, or somebody calls `interrupt`; False after ``seconds``."""
        if seconds <= 0:
            return self._told.acquire(False)
        return self._told.acquire(True, min(seconds, threading.TIMEOUT_MAX))

    def interrupt(self) -> None:
        """End `wait`, now or the next time. Any thread may call it; it waits for nothing."""
        release(self._told)

    def take(self) -> Finished[Q, A] | None:
        """The oldest answer not taken yet."""
        return self.finished.popleft() if self.finished else None

    def clear(self) -> Q | None:
        """Empty the slot; what was in it."""
        with self._mutex:
            dropped, self._slot = self._slot, None
        return dropped

    def restart(self) -> bool:
        """Have the next answer begin with a restart. False if the thread is idle: then nothing runs
        that the caller could not restart himself, before he asks again."""
        with self._mutex:
            self._restart = busy = self._busy  # read once: `rest` takes no lock
            return busy

    def rest(self) -> None:
        """Called by ``deliver``: what answers is at rest, and the caller may restart it himself."""
        self._busy = False

    def stop(self) -> None:
        """End the thread; it waits for nothing."""
        with self._mutex:
            self._stopped, self._slot = True, None
        self.bell.ring()

    def join(self, seconds: float) -> None:
        """Wait for the thread to end, for so long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        self._ident = threading.get_ident()
        step_back()
        while True:
            self.bell.wait()
            while True:
                with self._mutex:
                    question, self._slot = self._slot, None
                    self._busy = question is not None
                    if self._stopped:
                        return
                    if question is None:
                        break
                    restart, self._restart = self._restart, False
                answer = self._try(question, restart)
                if self._deliver is None or not self._deliver(question, answer):
                    self.finished.append(Finished(question, answer))
                    release(self._told)
                del question, answer  # an idle thread holds nothing

    def _try(self, question: Q, restart: bool) -> A | BaseException:
        try:
            return self._answer(question, restart)
        except BaseException as error:  # a request to stop belongs to the thread that waits
            return error


def release(lock: _thread.LockType) -> None:
    """Set a binary semaphore, which may be set already."""
    try:
        lock.release()
    except RuntimeError:
        pass


@atexit.register
def _part() -> None:
    """End all threads before the interpreter ends under them."""
    workers = list(_workers)
    for worker in workers:
        worker.stop()
    end = time.monotonic() + _PARTING
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
