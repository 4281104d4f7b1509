"""Kernel tests on a GPU, shared out between processes; see `tools.gpu_sections.tests`."""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tools import small_pytest
from tools.small_pytest import Outcome

#: Seconds that processes are waited for beyond their time, in which they say what they cut.
GRACE = 4.0


def run(
    names: Sequence[str], base: int, seconds: float, device: str, workers: int
) -> Iterator[Outcome]:
    """Outcomes as they come.

    Args:
        names: modules of tests. base: the run's seed. workers: 1 runs in this process.
    """
    end = time.monotonic() + seconds
    if workers == 1:
        yield from _part(names, base, end, device, 0, 1)
        return
    context = multiprocessing.get_context("spawn")  # a forked process may not use CUDA
    found: Any = context.Queue()
    given = [(found, names, base, end, device, number, workers) for number in range(workers)]
    processes = [context.Process(target=_work, args=each, daemon=True) for each in given]
    for process in processes:
        process.start()
    try:
        yield from _collected(found, processes, end)
    finally:
        for process in processes:
            process.kill()


def _collected(found: Any, processes: Sequence[Any], end: float) -> Iterator[Outcome]:
    left = len(processes)
    while left:
        try:
            outcome = found.get(timeout=0.2)
        except queue.Empty:
            late = time.monotonic() > end + GRACE
            if late or not any(process.is_alive() for process in processes):
                yield Outcome("processes", "failed", f"{left} ended without saying so, or hung")
                return
            continue
        if outcome is None:
            left -= 1
        else:
            yield outcome


def _work(found: Any, *given: Any) -> None:
    """One process: its outcomes, then None."""
    for outcome in _part(*given):
        found.put(outcome)
    found.put(None)
    found.close()
    found.join_thread()


def _part(
    names: Sequence[str], base: int, end: float, device: str, number: int, count: int
) -> Iterator[Outcome]:
    """Every ``count``-th test, beginning with ``number``."""
    small_pytest.install()
    if device == "cuda":
        from wmrt.kernels.triton import ferry, interpreter

        interpreter.repaired = ferry.ferried
    for name in names:
        yield from small_pytest.run_module(
            name, base, lambda: time.monotonic() < end, lambda at: at % count == number
        )
