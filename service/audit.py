"""The audit log: who was let in or not, and who did what to the breakers. One JSON object a line.

Lines are written by a thread of their own: neither the event loop nor a control step waits for a
disk. A flood of one event is cut to `RATE` lines a second; the next line says how many were left
out.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from datetime import datetime, timezone
from pathlib import Path
from queue import Full, Queue
from typing import Any

from wmrt.core.errors import UsageError
from wmrt.service.buckets import Buckets

#: Lines a second and event; a burst may have ten times as many.
RATE = 10.0
_CAPACITY = 4096
_log = logging.getLogger("wmrt.service")


class Audit:
    """Writes events to ``path``, which grows at its end; without a path to the log alone.

    Attributes:
        lost: events that could not be written: the queue was full, or the disk.

    Raises:
        UsageError: a file that cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = None
        if path is not None:
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            except OSError as error:
                raise UsageError(f"audit: {path} cannot be written: {error.strerror}") from None
            self._file = os.fdopen(descriptor, "a", encoding="utf-8", buffering=1)
        self._queue: Queue[str | None] = Queue(_CAPACITY)
        self._buckets = Buckets(RATE, 10 * RATE)
        self._left_out: dict[str, int] = {}
        self.lost = 0
        self._thread = threading.Thread(target=self._write, name="wmrt-audit", daemon=True)
        self._thread.start()

    def note(self, event: str, **fields: Any) -> None:
        """Keep one event; any thread, never waits. Tokens and sessions do not belong in it."""
        if not self._buckets.take(event):
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return
        left_out = self._left_out.pop(event, 0)
        # The one place of the service that asks what time people say it is.
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = {"at": at, "event": event, **fields}
        if left_out:
            line["left_out"] = left_out
        try:
            self._queue.put_nowait(json.dumps(line, default=str))
        except Full:
            self.lost += 1

    def close(self) -> None:
        """Write what is waiting, and end."""
        self._queue.put(None)
        self._thread.join(5.0)

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            _log.info("%s", line)
            if self._file is None:
                continue
            try:
                self._file.write(line + "\n")
            except OSError as error:
                self.lost += 1
                _log.warning("audit: a line is lost: %s", error.strerror)
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self.lost += 1
