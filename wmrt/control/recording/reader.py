"""Reads a recording: the files of a set in order, message by message."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from wmrt.control.recording.parts import part_path
from wmrt.control.recording.topics import END, FORMAT, HEAD
from wmrt.core.errors import RecordingError
from wmrt.core.extras import require


class Item(NamedTuple):
    """One message: its topic and its data."""

    topic: str
    message: dict[str, Any]


class Recording:
    """A recording on disk.

    Args:
        path: its first file.

    Attributes:
        head: text by name; see `wmrt.control.recording.head.head_of`.
        parts: files that belong to it, known after `items` has come to an end.
        end: counters as text by name that stand at its end; None until `items` has come there, and
            when it has no end: its recorder was killed, or stopped for want of disk space.

    Raises:
        RecordingError: a file that cannot be read, or is no recording's first.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.parts: list[Path] = []
        self.end: dict[str, str] | None = None
        self.head = _head(self.path)
        if self.head["part"] != "1":
            first = self.path.name.replace(f".{self.head['part']}.", ".")
            raise RecordingError(
                f"{self.path} is part {self.head['part']} of a recording; give its first, {first}"
            )

    def data(self, name: str) -> Any:
        """An entry of the head that is JSON. Raises `RecordingError` if it is none."""
        try:
            return json.loads(self.head[name])
        except (KeyError, ValueError) as error:
            raise RecordingError(f"{self.path}: no {name} in its head ({error})") from None

    def items(self) -> Iterator[Item]:
        """All messages in the order in which they were recorded.

        Raises:
            RecordingError: a file is damaged. One that ends too soon only ends: see ``end``.
        """
        self.parts, self.end = [], None
        path = self.path
        while self.end is None and path.is_file() and self._owns(path):
            self.parts.append(path)
            with _opened(path) as file:
                yield from self._read(path, file)
            path = part_path(self.path, len(self.parts) + 1)

    def _owns(self, path: Path) -> bool:
        return path == self.path or _head(path)["recording"] == self.head["recording"]

    def _read(self, path: Path, file: BinaryIO) -> Iterator[Item]:
        topics: dict[int, str] = {}
        for record in _records(path, file):
            kind = type(record).__name__
            if kind == "Channel":
                topics[record.id] = record.topic
            elif kind == "Message":
                if record.channel_id not in topics:  # it was named in what a wrong byte has hidden
                    raise RecordingError(f"{path} is damaged: a message of no channel that it has")
                yield Item(topics[record.channel_id], _message(path, record.data))
            elif kind == "Metadata" and record.name == END:
                self.end = dict(record.metadata)


def recordings_in(folder: Path) -> list[Path]:
    """First files of the recordings in a folder, by name.

    Raises:
        RecordingError: there are none, or a file is no recording.
    """
    found = [path for path in sorted(folder.glob("*.mcap")) if _head(path)["part"] == "1"]
    if not found:
        raise RecordingError(f"{folder}: no recording in it")
    return found


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror or error}") from None


def _records(path: Path, file: BinaryIO) -> Iterator[Any]:
    """MCAP records, checksums verified, up to where a file that was cut off ends."""
    reader = require("mcap.stream_reader", "record")
    size = os.fstat(file.fileno()).st_size
    records = reader.StreamReader(file, validate_crcs=True).records
    while True:
        try:
            record = next(records, None)
        except Exception as error:  # of mcap, struct and zstandard, for data that are none
            if file.tell() >= size and not isinstance(error, reader.CRCValidationError):
                return
            raise RecordingError(f"{path} is damaged: {' '.join(str(error).split())}") from None
        if record is None:
            return
        yield record


def _head(path: Path) -> dict[str, str]:
    """The metadata that a recording's file begins with."""
    with _opened(path) as file:
        for record in _records(path, file):
            kind = type(record).__name__
            if kind == "Metadata" and record.name == HEAD:
                head = dict(record.metadata)
                if head.get("format") != FORMAT:
                    raise RecordingError(
                        f"{path}: format {head.get('format')}, this version reads {FORMAT}"
                    )
                if not head.keys() >= {"recording", "part"}:
                    break
                return head
            if kind != "Header":
                break
    raise RecordingError(f"{path} is no recording of wmrt")


def _message(path: Path, data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"{path}: a message is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise RecordingError(f"{path}: a message is no JSON object")
    return message
