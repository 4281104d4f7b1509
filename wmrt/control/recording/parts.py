"""Writes one recording as a set of MCAP files: ``drive.mcap``, ``drive.2.mcap``, ...

An MCAP writer keeps an index entry of about 1.2 KB for every chunk until its file ends. At a chunk
a second that is 4 MB an hour, so a file ends after so many chunks or bytes and another one follows.
Each begins with the same metadata, its part's number besides, and is readable by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from wmrt.control.recording.topics import END, HEAD, SCHEMAS
from wmrt.core.errors import UsageError
from wmrt.core.extras import require

SUFFIX = ".mcap"


def part_path(first: Path, part: int) -> Path:
    """Where part ``part``, from 1, of the recording that begins at ``first`` lies."""
    return first if part == 1 else first.with_name(f"{first.stem}.{part}{SUFFIX}")


def check_new(first: Path) -> None:
    """Raise `UsageError` unless a recording may begin at ``first``: nothing is overwritten."""
    if first.suffix != SUFFIX:
        raise UsageError(f"{first}: a recording's name ends in {SUFFIX}")
    for path in (first, part_path(first, 2)):
        if os.path.lexists(path):
            raise UsageError(f"{path} is there already; remove it or give another name")


class PartWriter:
    """The files of one recording, written by one thread.

    Args:
        first: the first file; the others lie beside it.
        part_bytes, part_chunks: a file ends after the one or the other.

    Raises:
        UsageError: a name that is taken, or cannot be written.
        MissingExtraError: the package mcap is not installed.
    """

    #: A chunk ends when it has grown to so many bytes before compression.
    CHUNK_BYTES = 1 << 18

    def __init__(self, first: Path, *, part_bytes: int = 64 << 20, part_chunks: int = 1024) -> None:
        self._mcap = require("mcap.writer", "record")
        check_new(first)
        self._first = first
        self._part_bytes, self._part_chunks = part_bytes, part_chunks
        self._head: dict[str, str] = {}
        self._log_ns = 0
        self.part = 0
        self._done_bytes = self._size = 0  # in the parts that are done, and in this one
        self._open()

    @property
    def path(self) -> Path:
        """The file being written."""
        return part_path(self._first, self.part)

    @property
    def bytes(self) -> int:
        """Handed to the operating system so far, in all parts."""
        return self._done_bytes + self._size

    def _open(self) -> None:
        self.part += 1
        try:
            self._file = open(self.path, "xb")
        except OSError as error:
            raise UsageError(f"{self.path} cannot be written: {error.strerror or error}") from None
        self._identity = _identity(os.fstat(self._file.fileno()))
        self._chunks = self._pending = 0
        self._writer = self._mcap.Writer(self._file, chunk_size=1 << 40)  # `flush` ends chunks

    def start(self, head: Mapping[str, str]) -> None:
        """Write what a file begins with. ``head`` tells what was recorded."""
        self._head = dict(head)
        self._writer.start(profile="", library=f"wmrt; {self._mcap.LIBRARY_IDENTIFIER}")
        self._writer.add_metadata(HEAD, {**self._head, "part": str(self.part)})
        self._channels = {}
        for topic, schema in SCHEMAS.items():
            text = json.dumps(schema).encode()
            number = self._writer.register_schema(schema["title"], "jsonschema", text)
            self._channels[topic] = self._writer.register_channel(topic, "json", number)
        self._file.flush()  # a disk that is full says so now, not in the middle of a drive

    def write(self, topic: str, text: str, now_ns: int, sequence: int) -> None:
        """One message.

        Args:
            text: JSON. now_ns: reading of the controller's clock. Log times never decrease and are
                never negative, which a clock may: the true reading stands in the message.
        """
        self._log_ns = min(max(now_ns, self._log_ns), 2**63 - 1)
        data = text.encode("ascii")
        sequence &= 0xFFFFFFFF
        self._writer.add_message(self._channels[topic], self._log_ns, data, self._log_ns, sequence)
        self._pending += len(data)

    @property
    def full(self) -> bool:
        """Whether it is time to `flush`: the chunk has grown large enough."""
        return self._pending >= self.CHUNK_BYTES

    def flush(self) -> None:
        """Hand everything so far to the operating system; begin another file if this one is full.

        Raises:
            OSError: the disk is full, or the file is no longer where it was.
        """
        self._push()
        if self._chunks >= self._part_chunks or self._size >= self._part_bytes:
            self._finish()
            self._open()
            self.start(self._head)

    def _push(self) -> None:
        if self._pending:
            self._writer.flush()
            self._pending = 0
            self._chunks += 1
            self._size = self._file.tell()
        if _identity(os.stat(self.path)) != self._identity:
            raise OSError(None, "another file has taken its place")

    def _finish(self) -> None:
        self._writer.finish()
        self._done_bytes += self._file.tell()
        self._size = 0
        self._file.close()

    def end(self, tail: Mapping[str, str]) -> None:
        """Finish the recording; ``tail`` tells how it ended. Raises as `flush`."""
        self._push()
        self._writer.add_metadata(END, dict(tail))
        self._finish()

    def abandon(self) -> None:
        """Close the file as it is; what was flushed can be read. One that holds nothing goes."""
        with contextlib.suppress(OSError):  # it still held something for a disk that is full
            self._file.close()
        with contextlib.suppress(OSError):
            status = os.stat(self.path)
            if status.st_size == 0 and _identity(status) == self._identity:
                self.path.unlink()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
