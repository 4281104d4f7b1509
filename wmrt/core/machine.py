"""What machine and what source this is: facts that every result file names. All read on demand."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
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


def memory_bytes() -> int | None:
    """Main memory of the machine in bytes, or None where it cannot be read."""
    try:
        lines = _MEMINFO.read_text("ascii").splitlines()
        return int(next(x for x in lines if x.startswith("MemTotal:")).split()[1]) * 1024
    except (OSError, ValueError, StopIteration):
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
