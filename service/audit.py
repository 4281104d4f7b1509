"""The audit log: who was let in or not, and who did what to the breakers. One JSON object a line.

Lines are written by a thread of their own, into the log as well: neither the event loop nor a
control step waits for a disk. A flood of one event is cut to `RATE` lines a second; the next line
of it, or one ``left_out`` at the end, says how many were left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from queue import Full, Queue
from typing import Any

from structlog.contextvars import get_contextvars

from wmrt.core.errors import UsageError
from wmrt.service.buckets import Buckets
from wmrt.service.logs import log, redactor
from wmrt.service.settings import ServeSettings

#: Lines a second and event; a burst may have ten times as many.
RATE = 10.0
#: Seconds at the end for what is waiting.
PARTING = 5.0
_CAPACITY = 4096
#: What somebody may have to act on.
_WARN = frozenset(
    {
        *("unauthorized", "forbidden", "not_restored", "snapshot_damaged", "snapshot_failed"),
        *("standing_failed", "certificate_not_renewed"),
        *("lease_failed", "lease_unreadable"),
    }
)


class Audit:
    """Writes events to ``path``, which grows at its end; without a path to the log alone.

    Args:
        clean: takes out of a line what must not be in it.

    Attributes:
        lost: events that could not be written: the queue was full, or the disk.

    Raises:
        UsageError: a file that cannot be opened.
    """

    def __init__(self, path: Path | None, clean: Callable[[str], str] = str) -> None:
        self._file, self._clean = None, clean
        if path is not None:
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            except OSError as error:
                raise UsageError(f"audit: {path} cannot be written: {error.strerror}") from None
            self._file = os.fdopen(descriptor, "a", encoding="utf-8", buffering=1)
        self._queue: Queue[dict[str, Any] | None] = Queue(_CAPACITY)
        self._buckets = Buckets(RATE, 10 * RATE)
        self._left_out: dict[str, int] = {}
        self.lost = 0
        self._thread = threading.Thread(target=self._write, name="wmrt-audit", daemon=True)
        self._thread.start()

    def note(self, event: str, *, entitled: bool = False, **fields: Any) -> None:
        """Keep one event; any thread, never waits. Tokens and sessions do not belong in it.

        Args:
            entitled: by whom no flood of others' events of that name can keep it out.
        """
        kind = f"{event}, entitled" if entitled else event
        if not self._buckets.take(kind):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        left_out = self._left_out.pop(kind, 0)
        # What time people say it is; nothing else of the service asks but certificates.
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = {"at": at, "event": event, **get_contextvars(), **fields}
        if left_out:
            line["left_out"] = left_out
        try:
            self._queue.put_nowait(line)
        except Full:
            self.lost += 1

    def close(self) -> None:
        """Write what is waiting, and how many lines of a flood that has no next one were left out;
        then end."""
        left_out, self._left_out = self._left_out, {}
        for kind, count in left_out.items():
            self.note("left_out", of=kind.partition(",")[0], left_out=count)
        with contextlib.suppress(Full):  # a disk that hangs must not keep the process
            self._queue.put(None, timeout=PARTING)
        self._thread.join(PARTING)

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            fields = {key: value for key, value in line.items() if key not in ("at", "event")}
            (log.warning if line["event"] in _WARN else log.info)(line["event"], **fields)
            if self._file is None:
                continue
            try:
                self._file.write(self._clean(json.dumps(line, default=str)) + "\n")
            except Exception as error:  # a disk that is full, a field that cannot be told
                self.lost += 1
                log.warning("an audit line is lost", reason=str(error)[:300])
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self.lost += 1


def audit_of(settings: ServeSettings) -> Audit:
    """That of a process, without its tokens. `UsageError` for a file that cannot be opened."""
    return Audit(settings.audit, redactor(settings))
