"""A folder of snapshots that is one process's, or of those that share it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from wmrt.core.errors import UsageError
from wmrt.core.files import require_writable


class FolderLock:
    """Keeps a folder of snapshots for this process's life: alone, or with others that share it too.

    Raises:
        UsageError: another process uses the folder, and not both of them share it.
    """

    def __init__(self, folder: Path, shared: bool) -> None:
        require_writable(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            said = f"it cannot be locked: {error.strerror}"
            if isinstance(error, BlockingIOError):
                said = (
                    "another service uses this folder; with --shared for both of them they hand "
                    "robots over to each other, or choose another folder"
                )
            raise UsageError(f"snapshots {folder}: {said}") from None

    def close(self) -> None:
        """Let go."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
