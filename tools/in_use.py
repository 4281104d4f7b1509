"""What a process has in use of its memory, however it lies: holes between what is in use are not.

A leak of 100 bytes a step is lost for hours in the stairs in which resident memory grows; what is
in use grows by it evenly.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

#: Bytes that one of Python's own blocks has at most. Larger ones, which it counts too, are the C
#: library's.
BLOCK = 512
#: Suffix of the file in which it is told.
USED = ".used"


def bound(path: Path) -> int:
    """Bytes in use, at most, as a process told them last; OSError if it has told none."""
    given, blocks = json.loads(path.read_text("ascii"))
    return int(given) + BLOCK * int(blocks)


class _Told(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def in_use() -> tuple[int, int] | None:
    """Bytes that the C library has given, and blocks that Python has; garbage is collected first.
    None where the C library does not tell."""
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return None
    tell.restype = _Told
    gc.collect()
    told = tell()
    return told.uordblks + told.hblkhd, sys.getallocatedblocks()


def keep_telling(path: Path, seconds: float = 1.0) -> None:
    """From now on, in a thread of its own, write `in_use` into a file every so many seconds."""

    def run() -> None:
        while (found := in_use()) is not None:
            path.with_suffix(".new").write_text(json.dumps(found), "ascii")
            os.replace(path.with_suffix(".new"), path)
            time.sleep(seconds)

    threading.Thread(target=run, name="in-use", daemon=True).start()
