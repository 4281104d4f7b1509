"""Where a thread runs, and how urgent it is."""

from __future__ import annotations

import os
from typing import Any


def default_cpu() -> int | None:
    """The last processor this process may use, so that the first ones keep I/O; None if it has
    only one, or the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    usable = sorted(os.sched_getaffinity(0))
    return usable[-1] if len(usable) > 1 else None


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
