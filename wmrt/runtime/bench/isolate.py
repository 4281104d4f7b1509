"""Keeps the rest of the machine off this process, as far as it is allowed to."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_MCL_CURRENT, _MCL_FUTURE = 1, 2
#: Low among the real-time priorities: above every ordinary process, below the kernel's own threads.
PRIORITY = 10
_THROTTLE = Path("/proc/sys/kernel")


@dataclass(frozen=True)
class Measure:
    """One thing that was asked of the kernel: ``got`` it, or ``reason`` says why not."""

    name: str
    asked: str
    got: bool
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.name} {self.asked}" if self.got else f"no {self.name}: {self.reason}"


@contextmanager
def isolated(cpus: Sequence[int]) -> Iterator[list[Measure]]:
    """Affinity to ``cpus``, SCHED_FIFO and locked memory for the threads started inside; what was
    is put back at the end. Yields what was asked and what was got; nothing of it raises."""
    with ExitStack() as undo:
        taken = [
            _try("affinity", f"to {', '.join(map(str, cpus))}", lambda: _affinity(cpus, undo)),
            _try("SCHED_FIFO", f"at priority {PRIORITY}{throttled()}", lambda: _fifo(undo)),
            _try("mlockall", "of all memory", lambda: _lock(undo)),
        ]
        yield taken


def throttled(settings: Path = _THROTTLE) -> str:
    """What the kernel takes from real-time threads that never sleep, to be told beside them; empty
    if nothing, or if it does not tell (sched(7)).

    Steps back to back are such threads: with the usual 0.95 s of each 1.0 s, p99 was 2.5 times p50
    on two processors, against 1.7 without SCHED_FIFO.
    """
    try:
        period, runtime = (
            int((settings / f"sched_rt_{name}_us").read_text("ascii"))
            for name in ("period", "runtime")
        )
    except (OSError, ValueError):
        return ""
    if runtime < 0 or runtime >= period:
        return ""
    return (
        f", of which the kernel takes {(period - runtime) / 1000:g} ms every {period / 1000:g} ms "
        "(sysctl kernel.sched_rt_runtime_us=-1 switches that off)"
    )


def _try(name: str, asked: str, take: Callable[[], None]) -> Measure:
    try:
        take()
    except (OSError, AttributeError) as error:  # AttributeError: not on this system
        return Measure(name, asked, False, _reason(name, error))
    return Measure(name, asked, True)


def _reason(name: str, error: Exception) -> str:
    if not isinstance(error, OSError):
        return "this system has no such call"
    said = error.strerror or os.strerror(error.errno or errno.EPERM)
    hints = {
        "SCHED_FIFO": "needs CAP_SYS_NICE or an rtprio limit (ulimit -r)",
        "mlockall": "needs CAP_IPC_LOCK or a larger limit (ulimit -l)",
        "affinity": "these processors are not all this process's to use",
    }
    return f"{said}; {hints[name]}"


def _affinity(cpus: Sequence[int], undo: ExitStack) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    undo.callback(os.sched_setaffinity, 0, before)


def _fifo(undo: ExitStack) -> None:
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    undo.callback(os.sched_setscheduler, 0, policy, parameter)


def _lock(undo: ExitStack) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    undo.callback(libc.munlockall)
