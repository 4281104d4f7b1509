"""Python's interpreter in a process that serves robots and does nothing else."""

from __future__ import annotations

import gc
import sys

#: Seconds for which a thread may keep the interpreter lock from one that waits for it. With a busy
#: thread beside it, one that wakes to step a robot waited 5.2 ms (p50) at Python's own 5 ms, 1.3 ms
#: at 1 ms, 0.4 ms at 0.2 ms; two busy ones did 1 to 2% less in a processor's second at 1 ms, up to
#: 3% less at 0.2 ms. Shorter than a step's own work in Python, it would have robots that step at
#: once wait for each other's.
SWITCH = 0.001


def settle() -> None:
    """Bound what a robot's step may wait for, once libraries and model are there.

    With them there are 225 000 objects, and a collection of all of them, which comes when it comes,
    kept every thread from Python for 0.3 to 1.2 s on a busy 2-core machine. Those that are there
    now are garbage, which goes at once, or stay for the process's life and are not looked at again.

    A full collection comes once there are a quarter more objects than the last one left. The second
    one here leaves next to none: garbage of the frozen ones' number would be waited for, all day.
    """
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()
    gc.collect()
