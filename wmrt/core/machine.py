"""What machine and what source this is: facts that every result file names. All read on demand."""

from __future__ import annotations

import os
import platform
import subprocess
import threading
from importlib import metadata
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_CPUS = Path("/sys/devices/system/cpu")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_CAP_IPC_LOCK = 14  # capabilities(7)
_CACHES = _CPUS / "cpu0/cache"
_GOVERNOR = _CPUS / "cpu0/cpufreq/scaling_governor"
#: Instruction sets that decide which kernels can run, as the Linux kernel spells them.
_FEATURES = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)


def _cpuinfo(keys: tuple[str, ...]) -> str | None:
    """First value in /proc/cpuinfo under one of ``keys``, or None."""
    try:
        lines = _CPUINFO.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in keys and value.strip():
            return value.strip()
    return None


def cpu_name() -> str:
    """The processor's own name, or its architecture where it tells no name (most Arm boards)."""
    return _cpuinfo(("model name",)) or platform.processor() or platform.machine()


def cpu_features() -> tuple[str, ...]:
    """Instruction sets this processor has, of those wmrt cares about; empty where unknown."""
    have = set((_cpuinfo(("flags", "Features")) or "").split())
    return tuple(name for name in _FEATURES if name in have)


def usable_cpus() -> int:
    """Cores this process may run on (its affinity), not the cores of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_cpus() -> tuple[int, ...]:
    """One processor of every physical core this process may use; every one where that is unknown.

    Two threads on the two processors of one core share its units, and a memory bus that one of
    them fills: they gain nothing and wait for each other.
    """
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(usable_cpus()))
    first: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        try:
            core = (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text("ascii").strip()
        except OSError:
            core = str(cpu)
        first.setdefault(core, cpu)
    return tuple(first.values())


def huge_pages() -> str | None:
    """Linux's setting of transparent huge pages: always, madvise or never; None if it has none."""
    try:
        words = _HUGE_PAGES.read_text("ascii").split()
    except OSError:
        return None
    return next((word.strip("[]") for word in words if word.startswith("[")), None)


def realtime_refusal() -> str | None:
    """Why this process may not run a thread under SCHED_FIFO, or None: it may. By trying."""
    if not hasattr(os, "sched_setscheduler"):
        return f"{platform.system()} has no sched_setscheduler"
    refusals: list[str] = []

    def become() -> None:  # of this thread alone, which ends at once
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except OSError as error:
            refusals.append(error.strerror or str(error))

    thread = threading.Thread(target=become)
    thread.start()
    thread.join()
    return refusals[0] if refusals else None


def lockable_bytes() -> int | None:
    """Bytes this process may keep from being swapped out (mlockall); None is no limit."""
    import resource  # not on Windows

    try:
        lines = _STATUS.read_text("ascii", "replace").splitlines()
        word = next(line for line in lines if line.startswith("CapEff:")).split()[1]
        if int(word, 16) >> _CAP_IPC_LOCK & 1:
            return None
    except (OSError, StopIteration):
        pass  # no Linux: the limit is all there is
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def memory_bytes() -> int | None:
    """Main memory of the machine in bytes, or None where it cannot be read."""
    return _meminfo("MemTotal")


def available_bytes() -> int | None:
    """Memory that can be had without swapping (the kernel's estimate), or None if not told."""
    return _meminfo("MemAvailable")


def _meminfo(name: str) -> int | None:
    try:
        lines = _MEMINFO.read_text("ascii").splitlines()
        return int(next(x for x in lines if x.startswith(f"{name}:")).split()[1]) * 1024
    except (OSError, ValueError, StopIteration):
        return None


def last_level_cache_bytes() -> int | None:
    """Size of the largest cache that core 0 has, or None where the kernel does not tell."""
    sizes = [_cache_size(path) for path in sorted(_CACHES.glob("index*/size"))]
    return max((size for size in sizes if size), default=None)


def _cache_size(path: Path) -> int | None:
    """``32768K`` in bytes; None for anything else."""
    try:
        text = path.read_text("ascii").strip()
        return int(text[:-1]) * {"K": 2**10, "M": 2**20}[text[-1]]
    except (OSError, ValueError, LookupError):
        return None


def frequency_governor() -> str | None:
    """What sets core 0's clock (``performance``, ``schedutil``); None where no such thing is."""
    try:
        return _GOVERNOR.read_text("ascii").strip() or None
    except (OSError, ValueError):
        return None


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, without importing it; None if it is absent."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def source_commit() -> str | None:
    """Commit of the checkout wmrt runs from, with ``-dirty`` if a tracked file differs from it.

    None for an installed wheel, without git, and when the enclosing repository is somebody else's.
    """
    root = Path(__file__).resolve().parents[2]
    top = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if not commit or top is None or Path(top).resolve() != root:
        return None
    return commit + ("-dirty" if _git(root, "status", "--porcelain", "-uno") else "")


def _git(root: Path, *arguments: str) -> str | None:
    """Output of a git command, or None if git is absent, refuses or hangs."""
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
