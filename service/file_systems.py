"""Which file system a folder lies on, and so whose locks those in it are."""

from __future__ import annotations

import re
from pathlib import Path

#: Those of which this machine alone keeps the locks: one that is gone is gone with its process. A
#: file server takes locks of a process, too, that it has not heard of for a while.
LOCAL = frozenset(
    {
        *("bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "ntfs3", "overlay"),
        *("ramfs", "reiserfs", "tmpfs", "ubifs", "vfat", "xfs", "zfs"),
    }
)
_MOUNTS = Path("/proc/self/mountinfo")


def is_local(folder: Path) -> bool:
    """Whether it lies on this machine's own disk or memory; False where nobody can tell."""
    return kind_of(folder) in LOCAL


def kind_of(folder: Path) -> str | None:
    """Kind of the file system, as in proc_pid_mountinfo(5); None where the system does not tell."""
    try:
        real = str(folder.resolve())
        lines = _MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    point, kind = "", None
    for line in lines:
        before, _, after = line.partition(" - ")
        mounted = re.sub(r"\\([0-7]{3})", lambda o: chr(int(o[1], 8)), before.split(" ")[4])
        inside = real == mounted or real.startswith(mounted.rstrip("/") + "/")
        if inside and len(mounted) >= len(point):  # the last of those in one place is on top
            point, kind = mounted, after.split(" ")[0]
    return kind
