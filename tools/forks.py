"""Tries mutants in forked processes, each with limits of time and memory."""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable

from tools.mutations import Mutant

NOTICED, OVERLOOKED, BROKEN = 1, 0, 3
#: Bytes of address space that a mutant may fill.
MEMORY = 6 << 30
#: s of real time for one that waits for what never comes.
PATIENCE = 300.0


def pool(
    mutants: Iterable[Mutant],
    run: Callable[[Mutant], int],
    limit: Callable[[Mutant], float],
    workers: int,
    done: Callable[[], None],
) -> dict[str, str]:
    """``killed``, ``timeout`` or ``survived`` by name; each in a process of its own."""
    waiting = list(mutants)[::-1]
    running: dict[int, tuple[Mutant, float]] = {}
    verdicts: dict[str, str] = {}
    while waiting or running:
        while waiting and len(running) < workers:
            mutant = waiting.pop()
            running[_fork(run, mutant, limit(mutant))] = mutant, time.monotonic() + PATIENCE
        time.sleep(0.002)
        for pid, (mutant, until) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and time.monotonic() < until:
                continue
            if not ended:
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
            del running[pid]
            verdicts[mutant.name] = _verdict(mutant, os.waitstatus_to_exitcode(status))
            done()
    return verdicts


def _fork(run: Callable[[Mutant], int], mutant: Mutant, seconds: float) -> int:
    """A process that runs ``mutant`` and leaves the outcome as its exit status."""
    pid = os.fork()
    if pid:
        return pid
    status = BROKEN
    try:
        for file in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
        whole = math.ceil(seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        status = run(mutant)
    finally:
        os._exit(status)


def _verdict(mutant: Mutant, status: int) -> str:
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return "timeout"
    if status in (NOTICED, OVERLOOKED):
        return "killed" if status == NOTICED else "survived"
    raise RuntimeError(f"{mutant.name}: its process ended with {status}, which says nothing")
