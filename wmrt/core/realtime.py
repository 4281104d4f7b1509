"""Real time as far as it is allowed: processors of one's own, priority, memory that stays, no
garbage collection of what lives already. Says what was asked and what was got."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wmrt.core import frozen_garbage

_MCL_CURRENT, _MCL_FUTURE = 1, 2
#: Low among the real-time priorities: above every ordinary process, below the kernel's own threads.
PRIORITY = 10
_THROTTLE = Path("/proc/sys/kernel")


@dataclass(frozen=True)
class Measure:
    """One thing that was asked of the system: ``got`` it, or ``reason`` says why not."""

    name: str
    asked: str
    got: bool
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.name} {self.asked}" if self.got else f"no {self.name}: {self.reason}"


@contextmanager
def realtime(
    cpus: Sequence[int] | None = None,
    *,
    priority: int | None = PRIORITY,
    lock: bool = True,
    freeze: bool = True,
) -> Iterator[list[Measure]]:
    """Real time for this thread and the threads started inside; what was is put back at the end.

    Yields what was asked and what was got; nothing of it raises.

    Args:
        cpus: processors to run on; None: any.
        priority: under SCHED_FIFO, 1 to 99; None: the ordinary scheduler. A controller's policy
            runs one below its loop.
        lock: keep all memory of the process in RAM.
        freeze: collect garbage now, and leave what lives now out of later collections.
    """
    with ExitStack() as undo:
        taken: list[Measure] = []
        if cpus is not None:
            asked = f"to {', '.join(map(str, cpus))}"
            taken.append(_try("affinity", asked, lambda: _affinity(cpus, undo)))
        if priority is not None:
            asked = f"at priority {priority}{throttled()}"
            taken.append(_try("SCHED_FIFO", asked, lambda: _fifo(priority, undo)))
        if lock:
            taken.append(_try("mlockall", "of all memory", lambda: _lock(undo)))
        if freeze:
            taken.append(_try("gc.freeze", "of what lives", lambda: _freeze(undo)))
        yield taken


def step_back() -> Measure:
    """Give this thread one priority less if it is a real-time thread: it works for one that must
    stay able to interrupt it."""
    return _try("lower priority", "than the loop's", _step_back)


def leave() -> Measure:
    """Put this thread under the ordinary scheduler: for I/O beside a real-time loop."""
    asked = "for this thread"
    return _try("ordinary scheduling", asked, lambda: _schedule(os.SCHED_OTHER, 0))


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
    return f"{said}; {hints[name]}" if name in hints else said


def _affinity(cpus: Sequence[int], undo: ExitStack) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    undo.callback(os.sched_setaffinity, 0, before)


def _fifo(priority: int, undo: ExitStack) -> None:
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    _schedule(os.SCHED_FIFO, priority)
    undo.callback(os.sched_setscheduler, 0, policy, parameter)


def _schedule(policy: int, priority: int) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(priority))


def _step_back() -> None:
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    if priority > 1:
        _schedule(policy, priority - 1)


def _freeze(undo: ExitStack) -> None:
    frozen_garbage.hold()
    undo.callback(frozen_garbage.release)


def _lock(undo: ExitStack) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    undo.callback(libc.munlockall)
