"""What lives when a step is ready is kept out of garbage collections, until nobody needs that.

A collection walks every object that torch and a model made, for 10 ms and more: a missed deadline
(ModelTC/LightLLM#1382). ``gc.freeze`` is one setting of the whole process, so its users are
counted: the last one that lets go undoes it.
"""

from __future__ import annotations

import gc
import threading

_lock = threading.Lock()
_holders = 0


def hold() -> None:
    """Collect once, then set aside everything that lives. Pair it with `release`."""
    global _holders
    with _lock:
        _holders += 1
        gc.collect()
        gc.freeze()


def release() -> None:
    """Let go; the last holder gives all that was set aside back to the collector."""
    global _holders
    with _lock:
        _holders -= 1
        if _holders == 0:
            gc.unfreeze()
