"""Memory that this process can still have, and the error that says so when it is not enough."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from wmrt.core import machine
from wmrt.core.errors import OutOfMemoryError, WmrtError

_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_STATUS = Path("/proc/self/status")
#: Of glibc's mallopt (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
#: Bytes from which an allocation has pages of its own, which go back at once: where glibc begins.
#: Bytes at the heap's end that are kept for the next one that asks.
_OWN_PAGES, _KEPT = 128 << 10, 16 << 20
#: How torch says that it could not allocate, with the bytes it asked for.
_ALLOCATION = re.compile(
    r"can't allocate memory: you tried to allocate (\d+)|not enough memory.*?(\d+) bytes"
)
#: How errors of libraries say it: with the words of the C library, or those of its loader.
_SAID = (os.strerror(errno.ENOMEM), "failed to map segment")


class Room(NamedTuple):
    """Bytes that can still be had, and what ends there."""

    bytes: int
    limit: str


def physical() -> Room | None:
    """Memory that can be had without swapping: of the machine, or of this process's control group
    (as containers are limited); None where the system does not tell."""
    found = [] if (free := machine.available_bytes()) is None else [Room(free, "of the machine")]
    found += [Room(rest, "of its control group") for rest in _cgroup_rests()]
    return min(found, default=None)


def available() -> Room | None:
    """`physical`, or less where a limit of the process itself comes first (``ulimit -v, -d``)."""
    found = [room for room in (physical(), *_limits()) if room is not None]
    return min(found, default=None)


def require(needed: int, what: str) -> None:
    """Raise `OutOfMemoryError` if ``needed`` bytes are more than there is main memory left."""
    there = physical()
    if there is not None and there.bytes < needed:
        raise OutOfMemoryError(
            f"{what} needs {needed:,} bytes of memory, {there.bytes:,} are available {there.limit}"
        )


@contextlib.contextmanager
def told(what: str, size: Callable[[], int | None] = lambda: None) -> Iterator[None]:
    """Memory that runs out in the block is an `OutOfMemoryError`.

    Args:
        what: the work, for the message. size: bytes of the weights it is about; asked for then.
    """
    try:
        yield
    except OutOfMemoryError:
        raise
    except (MemoryError, OSError, RuntimeError, ImportError, WmrtError) as error:
        asked = _asked(error)
        if asked is None:
            raise
        raise OutOfMemoryError(_message(what, asked, size())) from error


def steady_heap() -> bool:
    """Have the C library's heap stay as it is in a process that runs for months; False where it
    knows no way, or is not glibc. It concerns threads that begin from now on; it cannot be undone.

    glibc gives each thread a heap of its own, up to eight for each processor. What one thread takes
    and another frees leaves holes in all of them: a service with 30 threads grew by 60 KB with
    every page that somebody asked for, for as long as it was looked at, and not at all with one
    heap. Python's threads wait for each other anyway.

    It also raises, with the first large block that is freed, the size from which a block has pages
    of its own, up to 32 MiB. From then on the 256 KiB that asyncio takes to read from a connection
    are looked for among small objects, and the heap grows by so much whenever these lie in between.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    options = {_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: _OWN_PAGES, _M_TRIM_THRESHOLD: _KEPT}
    return all(mallopt(option, value) for option, value in options.items())


def _asked(error: BaseException) -> int | None:
    """Bytes that could not be had, 0 where that is not told; None: the error is another one."""
    found = _ALLOCATION.search(str(error))
    if found is not None:
        return int(found.group(1) or found.group(2))
    if isinstance(error, MemoryError):
        return 0
    if isinstance(error, OSError):
        return 0 if error.errno == errno.ENOMEM else None
    return 0 if any(words in str(error) for words in _SAID) else None


def _message(what: str, asked: int, size: int | None) -> str:
    there = available()
    more = f"{asked:,} bytes" if asked else "memory"
    weights = "" if size is None else f", for weights of {size:,} bytes"
    room = "" if there is None else f"; {there.bytes:,} bytes are available {there.limit}"
    return f"{what}: {more} could not be had{weights}{room}"


def _limits() -> Iterator[Room]:
    """What is left of the limits on address space and on data."""
    try:
        import resource  # not on Windows

        lines = dict(
            line.split(":", 1) for line in _STATUS.read_text("ascii", "replace").splitlines()
        )
        for limit, field, name in (
            (resource.RLIMIT_AS, "VmSize", "of its address space (ulimit -v)"),
            (resource.RLIMIT_DATA, "VmData", "of its data (ulimit -d)"),
        ):
            most = resource.getrlimit(limit)[0]
            if most != resource.RLIM_INFINITY:
                yield Room(max(0, most - int(lines[field].split()[0]) * 1024), name)
    except (ImportError, OSError, ValueError, LookupError):
        return


def _cgroup_rests() -> Iterator[int]:
    """What is left below memory.max of this process's group and of each above it; cgroup v2."""
    try:
        lines = _CGROUP.read_text("utf-8").splitlines()
        name = next(line for line in lines if line.startswith("0::"))[3:]
    except (OSError, StopIteration):
        return
    own = Path(name.lstrip("/"))
    for folder in (own, *own.parents):
        rest = _rest(_CGROUPS / folder)
        if rest is not None:
            yield rest


def _rest(group: Path) -> int | None:
    """Bytes left in a control group: cached files that nothing uses can be given up."""
    try:
        most = int((group / "memory.max").read_text("ascii"))
        used = int((group / "memory.current").read_text("ascii"))
        counts = dict(
            line.split() for line in (group / "memory.stat").read_text("ascii").splitlines()
        )
        return max(0, most - used + int(counts.get("inactive_file", 0)))
    except (OSError, ValueError):  # "max": no limit
        return None
