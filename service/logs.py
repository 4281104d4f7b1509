"""Logs: events with fields, written by a thread of their own.

The service logs through `log`, which is the standard library's logger ``wmrt.service``; importing
it changes nobody's configuration. `Logs` is what `wmrt serve` configures: whoever logs puts a
record into a bounded queue and goes on, whether or not anybody reads the other end of the pipe.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import select
import threading
import time
from asyncio import CancelledError
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from logging.handlers import QueueHandler
from queue import Full, Queue
from typing import Any
from urllib.parse import quote

import structlog
from pydantic import SecretStr

from wmrt.core.wire import Acted
from wmrt.service.buckets import Buckets
from wmrt.service.log_lines import formatter
from wmrt.service.meter import RobotMeter, Stall
from wmrt.service.settings import ServeSettings

#: Records that wait to be written.
CAPACITY = 4096
#: Seconds between two lines about one robot's missed deadlines.
QUIET = 10.0
#: The logger of connections, whose protocols are uvicorn's and websockets'. Whoever connects says
#: how many lines there are, so those that only tell of it are left out (the audit log has what
#: matters of them), and of others, by their text, so many a second; a burst ten times as many.
CONNECTIONS, RATE = "wmrt.service.connections", 10.0
#: Seconds at the end for what is waiting; a pipe that nobody reads must not keep a process.
PARTING = 2.0
_NO_UTF_8 = "Invalid UTF-8 sequence"  # as uvicorn says it
_BEARER = re.compile(r"(?i)(bearer\s+)[^\s\"'\\]+")

#: Events with fields: ``log.info("opened", robot="r1")``. Nothing is configured globally.
log: Any = structlog.wrap_logger(
    logging.getLogger("wmrt.service"),
    processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
)


class Redactor:
    """Takes tokens out of a line, however they got there."""

    def __init__(self, tokens: Iterable[SecretStr | None] = ()) -> None:
        plain = [token.get_secret_value() for token in tokens if token is not None]
        spelled = {s for t in plain for s in (t, repr(t)[1:-1], quote(t, safe=""))}
        forms = spelled | {json.dumps(s)[1:-1] for s in spelled}
        longest_first = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, line: str) -> str:
        if self._known is not None:
            line = self._known.sub("[token]", line)
        return _BEARER.sub(r"\1[token]", line)


class _Sparse(logging.Filter):
    """Lets through what is to be read of `CONNECTIONS`, and everything else."""

    def __init__(self) -> None:
        super().__init__()
        self._buckets = Buckets(RATE, 10 * RATE)
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != CONNECTIONS:
            return True
        text = str(record.msg)
        if record.levelno <= logging.INFO:
            return False
        if not self._buckets.take(text):
            self._left_out[text] += 1
            return False
        left_out = self._left_out.pop(text, 0)
        if left_out:
            text = f"{text.rstrip()} ({left_out} more were left out)"
        record.msg = text.rstrip()
        # Nobody has to know where in uvicorn a peer's bytes were no UTF-8, or where a request stood
        # that was cancelled as the process ended. Else it is a fault, and this its only trace.
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, CancelledError) or text.startswith(_NO_UTF_8):
            record.exc_info = None
        return True


class _Handler(QueueHandler):
    """Hands records over, or counts them. Never waits."""

    queue: Queue[logging.LogRecord | None]
    dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """As it is now: arguments and context may change. The rest is the writer's work."""
        record.msg, record.args = record.getMessage(), None
        record.__dict__["context"] = structlog.contextvars.get_contextvars()
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except Full:
            self.dropped += 1

    def handleError(self, record: logging.LogRecord) -> None:
        self.dropped += 1  # a message that cannot be put together; stderr may be blocked


class Logs:
    """Everything that is logged, as lines, while `installed`.

    Args:
        write: gets each line, in the writer's thread; may block, may raise `OSError`.
        clean: see `Redactor`.
        form: ``text`` or ``json``. level: of this package; others' debugging is left out.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        clean: Callable[[str], str],
        form: str = "text",
        level: str = "info",
    ) -> None:
        self._write, self._clean, self._level = write, clean, level.upper()
        self._formatter = formatter(form)
        self._handler = _Handler(Queue(CAPACITY))
        self._handler.addFilter(_Sparse())
        self._lost = self._told = 0
        self._thread = threading.Thread(target=self._run, name="wmrt-logs", daemon=True)

    @property
    def dropped(self) -> int:
        """Records that were not written: the queue was full, or ``write`` failed."""
        return self._handler.dropped + self._lost

    @contextlib.contextmanager
    def installed(self) -> Iterator[Logs]:
        """Take the place of the root logger's handlers, and give it back."""
        root, own = logging.getLogger(), logging.getLogger("wmrt")
        before = (root.handlers[:], root.level, own.level)
        root.handlers[:] = [self._handler]
        own.setLevel(self._level)
        root.setLevel(max(logging.INFO, own.level))  # libraries' debugging may be one line a frame
        self._thread.start()
        try:
            yield self
        finally:
            root.handlers[:], level, own.level = before
            root.setLevel(level)
            self._close()

    def _close(self) -> None:
        end = time.monotonic() + PARTING
        with contextlib.suppress(Full):
            self._handler.queue.put(None, timeout=PARTING)
        self._thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        queue = self._handler.queue
        while (record := queue.get()) is not None:
            self._put(record)
            dropped = self.dropped
            if dropped != self._told and queue.empty():
                self._put(_dropped(dropped - self._told))
                self._told = dropped

    def _put(self, record: logging.LogRecord) -> None:
        try:
            line = self._clean(self._formatter.format(record))
            self._write(line.encode("utf-8", "backslashreplace") + b"\n")
        except Exception:  # a disk that is full, a pipe that is closed, a field that cannot be told
            self._lost += 1


def _dropped(count: int) -> logging.LogRecord:
    text = f"{count} log records were dropped: nobody read them in time"
    return logging.LogRecord("wmrt.service", logging.WARNING, "", 0, text, None, None)


def to_file(descriptor: int) -> Callable[[bytes], None]:
    """What writes lines to an open file. Past `sys.stderr`, whose lock a thread that a full pipe
    holds up would keep, and so the interpreter from ending."""

    def write(line: bytes) -> None:
        while line:
            try:
                line = line[os.write(descriptor, line) :]
            except BlockingIOError:  # somebody else has set the pipe so
                select.select([], [descriptor], [], 1.0)

    return write


def redactor(settings: ServeSettings) -> Redactor:
    """For the tokens of the settings."""
    return Redactor((settings.token, settings.operator_token, settings.metrics_token))


def logs_of(settings: ServeSettings) -> Logs:
    """Those of a process, to its standard error."""
    return Logs(to_file(2), redactor(settings), settings.log_format, settings.log_level)


def overrun(answer: Acted, robot: RobotMeter) -> None:
    """Tell a missed deadline, at most once in `QUIET` seconds for each robot."""
    robot.untold += 1
    now = time.monotonic()
    if now < robot.quiet_until:
        return
    robot.quiet_until = now + QUIET
    log.warning(
        "deadline missed", robot=answer.robot, step=answer.step, source=answer.source,
        act_ms=round(answer.act_ns * 1e-6, 3), queue_ms=round(answer.queue_ns * 1e-6, 3),
        misses=robot.untold,
    )  # fmt: skip
    robot.untold = 0


def stalled(answer: Acted, stall: Stall) -> None:
    """Tell each step that took many deadlines: of one robot, no more than its deadline allows."""
    pieces = {
        f"{name}_ms": None if seconds is None else round(seconds * 1e3, 3)
        for name, seconds in zip(stall._fields[4:], stall[4:], strict=True)
    }
    log.error(
        "step stalled", robot=answer.robot, step=stall.step, source=stall.source,
        skipped=stall.skipped, **pieces,
    )  # fmt: skip
