"""Worker processes that never outlive what they work for."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, resource_tracker
from typing import Any

from wmrt.core import memory
from wmrt.core.errors import WmrtError

#: Seconds between two looks. A killed parent cannot tell its workers, and a worker whose queue is
#: full would drive on for minutes.
INTERVAL = 1.0


@contextlib.contextmanager
def worker_pool(
    jobs: int, prepare: Callable[..., object] | None = None, *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """A pool of ``jobs`` processes; each first calls ``prepare(*arguments)``.

    Leaving the block by an error or Ctrl-C ends the workers at once, in the middle of what they do.
    Ctrl-C itself is for the process that started them: workers do not see it. A worker that dies,
    killed by the system for want of memory for example, is a `WmrtError`.
    """
    # Spawned, not forked: a forked child inherits torch's thread pools in an unusable state.
    context = get_context("spawn")
    resource_tracker.ensure_running()  # it unblocks SIGINT when it starts
    others = set(active_children())
    pool = _Pool(jobs, context, initializer=_start, initargs=(prepare, arguments))
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        mine = set(active_children()) - others
        for worker in mine:
            worker.terminate()
        for worker in mine:
            worker.join()
        if isinstance(error, BrokenProcessPool):
            raise WmrtError(_death(jobs)) from error
        raise
    pool.shutdown()


def _death(jobs: int) -> str:
    there = memory.available()
    room = "" if there is None else f" ({there.bytes:,} bytes are available {there.limit})"
    return (
        f"one of {jobs} worker processes died: it was killed, ran out of memory{room}, or printed "
        "its reason above; fewer processes need less memory"
    )


class _Pool(ProcessPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        # A task may start a worker, which then holds SIGINT back for good, from its first moment.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(prepare: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    exit_with_parent()
    if prepare is not None:
        prepare(*arguments)


def exit_with_parent() -> None:
    """End this process within about `INTERVAL` seconds of its parent's death, whatever it does.

    Call it first thing in a worker, while the parent is known to live.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(INTERVAL)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
