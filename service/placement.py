"""Where a thread runs, and how urgent it is."""

from __future__ import annotations

import os
import threading
from typing import Any

from wmrt.core.errors import UnsupportedError


def default_cpu() -> int | None:
    """The last processor this process may use, so that the first ones keep I/O; None if it has
    only one, or the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1] if len(usable) > 1 else None


def placeable(cpu: int | None, priority: int) -> int | None:
    """The processor of a setting: `default_cpu` for None, else itself.

    Raises:
        UnsupportedError: a thread cannot be put there, or not at this priority. What was asked for
            by number is had or refused: a robot's loop that is quietly without it is late when the
            machine is busy, and nobody knows why.
    """
    if cpu is not None and cpu >= 0:
        usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if cpu not in usable:
            allowed = f"this process may use {_ranges(usable)}" if usable else "no choice here"
            raise UnsupportedError(f"cpu {cpu}: {allowed}; -1 is any of them")
    # The alarm of a deadline runs above the policy, which may keep its own processor busy.
    for level in sorted({priority, alarm_priority(priority)} - {0}):
        if reasons := _tried(level):
            raise UnsupportedError(
                f"priority {priority}: {reasons[0]}; threads take up to "
                f"{alarm_priority(priority)}, which needs LimitRTPRIO= in systemd, ulimit -r, or "
                "CAP_SYS_NICE; 0 asks for none"
            )
    return default_cpu() if cpu is None else cpu


def _tried(priority: int) -> list[str]:
    """Why a thread does not get this priority; empty if it does."""
    got: list[dict[str, Any]] = []
    trial = threading.Thread(target=lambda: got.append(place(None, priority)))
    trial.start()
    trial.join()
    return list(got[0]["reasons"])


def alarm_priority(priority: int) -> int:
    """Of the thread that keeps the deadline of a policy at ``priority``; 0 for none."""
    return min(priority + 1, 99) if priority else 0


def _ranges(cpus: list[int]) -> str:
    """``0-3, 6``."""
    found: list[list[int]] = []
    for cpu in cpus:
        if found and found[-1][1] == cpu - 1:
            found[-1][1] = cpu
        else:
            found.append([cpu, cpu])
    return ", ".join(f"{a}-{b}" if a < b else str(a) for a, b in found)


def place(cpu: int | None, priority: int) -> dict[str, Any]:
    """Put the calling thread on ``cpu`` and under SCHED_FIFO at ``priority`` (0: neither).

    Returns what was had, with the reason for what was not; never raises.
    """
    got: dict[str, Any] = {"cpu": None, "priority": None, "reasons": []}
    if cpu is not None and cpu >= 0:
        try:
            os.sched_setaffinity(0, {cpu})
            got["cpu"] = cpu
        except (OSError, AttributeError) as error:
            got["reasons"].append(f"cpu {cpu}: {_said(error)}")
    if priority:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
            got["priority"] = priority
        except (OSError, AttributeError) as error:
            got["reasons"].append(f"SCHED_FIFO {priority}: {_said(error)}")
    return got


def _said(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error))[:200]
