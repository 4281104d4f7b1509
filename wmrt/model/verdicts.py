"""Remembers which weight files have already been hashed and found right.

One small JSON file per weight path in ``$XDG_CACHE_HOME/wmrt/verified`` (default ``~/.cache``). A
verdict holds for exactly one (path, inode, size, mtime_ns, root); anything else means the file is
hashed again. Only good verdicts are stored. A cache that cannot be read or written costs time,
never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

#: A file changed twice within one timestamp tick (4 ms on ext4, 2 s on FAT) looks unchanged, so a
#: verdict is stored only once the file is older than this.
SETTLED_NS = 2_000_000_000

Key = tuple[str, int, int, int, str]


def cache_dir() -> Path | None:
    """Folder of the verdicts, or None where there is no home to put it in."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative value is to be ignored
        try:
            base = str(Path.home() / ".cache")
        except RuntimeError:
            return None
    return Path(base) / "wmrt" / "verified"


def key_of(path: Path, root: str) -> Key:
    """Identity of the file as it lies on disk now."""
    real = path.resolve()
    stat = real.stat()
    return str(real), stat.st_ino, stat.st_size, stat.st_mtime_ns, root


def is_verified(key: Key) -> bool:
    """Whether this very file was hashed before and gave ``root``."""
    folder = cache_dir()
    if folder is None:
        return False
    try:
        return bool(json.loads(_entry(folder, key).read_text("utf-8")) == list(key))
    except (OSError, ValueError):
        return False


def remember(key: Key) -> None:
    """Store a good verdict, unless the file is too fresh for its mtime to tell a later change."""
    folder = cache_dir()
    if folder is None:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(key, file)
            if os.stat(name).st_mtime_ns - key[3] >= SETTLED_NS:
                os.replace(name, _entry(folder, key))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)


def _entry(folder: Path, key: Key) -> Path:
    return folder / f"{hashlib.sha256(os.fsencode(key[0])).hexdigest()[:32]}.json"
