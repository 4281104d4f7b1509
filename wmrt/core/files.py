"""Files that appear whole or not at all, places that are found unwritable before the work, and the
JSON object a file holds."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wmrt.core.errors import CheckpointError, UsageError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write ``path`` under a temporary name beside it: ``with replacing(path) as temporary``.

    It is renamed when the block ends. When the block fails, on a full disk or by Ctrl-C, the
    temporary file goes and what ``path`` was before stays. Of several that write at once, also in
    containers that count their processes alike, each has a file of its own; the last one stays.

    Raises:
        UsageError: for an OSError, with the path and the reason.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Remove what processes that were killed while `replacing` ``path`` have left beside it."""
    left = re.compile(re.escape(f".{path.name}.") + r"[0-9]+(\.[0-9a-f]+)?")
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*"):
        if left.fullmatch(temporary.name):  # none of another file, whose name begins like it
            temporary.unlink(missing_ok=True)


def require_writable(folder: Path) -> None:
    """Raise `UsageError` unless files can be written in ``folder``, which need not exist yet.

    Writes a page to a file without a name in the nearest folder that exists; nothing is left.
    """
    nearest = folder.absolute()
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    try:
        if not nearest.is_dir():
            raise NotADirectoryError(None, "it is no folder")
        with tempfile.TemporaryFile(dir=nearest) as probe:
            probe.write(bytes(4096))
    except OSError as error:
        where = "" if nearest == folder.absolute() else f" in {nearest}"
        reason = error.strerror or str(error)
        raise UsageError(f"{folder} cannot be written{where}: {reason}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; `CheckpointError` when it holds none."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{path}: expected an object, got {type(data).__name__}")
    return data


def flush(path: Path) -> None:
    """fsync a file or folder; some file systems refuse it for folders."""
    fd = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)
