"""SHA-256 tree hash of a weight file, computed on several threads.

Definition (all integers little-endian): the file is cut into chunks of 4 MiB, the last one shorter.
``leaf_i = SHA-256(0x00 || chunk_i)``,
``root = SHA-256(0x01 || uint64 file size || leaf_0 || leaf_1 ...)``.
The two prefixes keep a leaf from being passed off as a root (as in RFC 6962, section 2.1).
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: Bytes per leaf.
CHUNK = 4 * 2**20
_LEAF, _ROOT = b"\x00", b"\x01"


def tree_hash(path: str | os.PathLike[str], *, threads: int | None = None) -> str:
    """Root of the file's hash tree, as 64 hex digits.

    Args:
        path: the file; read once, through the page cache.
        threads: worker threads, None for one per core; hashlib releases the GIL while it works.

    Raises:
        OSError: the file cannot be read, or shrinks while it is read.
    """
    fd = os.open(Path(path), os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        starts = range(0, size, CHUNK)
        workers = max(1, min(threads or os.cpu_count() or 1, len(starts)))
        with ThreadPoolExecutor(workers) as pool:
            leaves = list(pool.map(lambda i: _leaf(fd, i, min(CHUNK, size - i)), starts))
    finally:
        os.close(fd)
    root = hashlib.sha256(_ROOT + size.to_bytes(8, "little"))
    for leaf in leaves:
        root.update(leaf)
    return root.hexdigest()


def _leaf(fd: int, start: int, length: int) -> bytes:
    """Digest of one chunk; a short read is an error, because the size is part of the hash."""
    digest = hashlib.sha256(_LEAF)
    position, end = start, start + length
    while position < end:
        piece = os.pread(fd, end - position, position)
        if not piece:
            raise OSError(f"file ended at byte {position}, expected at least {end}")
        digest.update(piece)
        position += len(piece)
    return digest.digest()
