"""A thread that does one thing after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from wmrt.core.errors import UsageError
from wmrt.service.logs import log
from wmrt.service.placement import place

T = TypeVar("T")
#: Threads of a process for what waits for a disk.
IO_THREADS = 6


class Worker:
    """Runs what it is given, in order, in its own thread; started at once.

    Args:
        name: of the thread.
        cpu, priority: see `place`.
        run: what the thread does instead of waiting for `put`.

    Attributes:
        placed: what it got of them, once it runs. closed: nothing that is put in now is done.
    """

    def __init__(
        self,
        name: str,
        cpu: int | None = None,
        priority: int = 0,
        run: Callable[[], object] | None = None,
    ) -> None:
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._place = (cpu, priority)
        self._body = self._serve if run is None else run
        self.closed = False
        self.placed: dict[str, Any] = {}
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def name(self) -> str:
        return self._thread.name

    @property
    def alive(self) -> bool:
        """Whether the thread runs; it ends after `close`, or by what is no `Exception`."""
        return self._thread.is_alive()

    def put(self, do: Callable[[], object]) -> None:
        """``do`` later, in this thread. It must not raise: nobody would hear of it but the log."""
        self._queue.put(do)

    def call(self, do: Callable[[], T]) -> Future[T]:
        """``do`` later, in this thread, and what it returns or raises."""
        future, run = promised(do)
        if self.closed or not self.alive:  # nobody would ever do it
            future.set_exception(
                UsageError(f"the service is stopping, or thread {self.name} has ended")
            )
        else:
            self._queue.put(run)
        return future

    def close(self, seconds: float = 5.0) -> bool:
        """End after what is queued; False if it still runs after ``seconds``."""
        self.closed = True
        self._queue.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self.placed = place(*self._place)
        self._ready.set()
        self._body()

    def _serve(self) -> None:
        get = self._queue.get
        while (do := get()) is not None:
            try:
                do()
            except Exception:  # a fault of ours must not end the thread that steps the robots
                log.exception("a worker's task failed", worker=self._thread.name)


async def start_io_threads() -> None:
    """Give the running event loop the threads of its `asyncio.to_thread`, all of them now: asyncio
    would start one whenever all are busy, for as long as a service runs."""
    pool = ThreadPoolExecutor(IO_THREADS, "wmrt-io")
    asyncio.get_running_loop().set_default_executor(pool)
    together = threading.Barrier(IO_THREADS)
    await asyncio.gather(*(asyncio.to_thread(together.wait) for _ in range(IO_THREADS)))


def promised(do: Callable[[], T]) -> tuple[Future[T], Callable[[], None]]:
    """What ``do`` will return or raise, and what is to be called for it."""
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return  # nobody waits for it any more
        try:
            future.set_result(do())
        except BaseException as error:
            future.set_exception(error)

    return future, run
