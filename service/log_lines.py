"""How a log record becomes a line: JSON for machines, text for people. In the writer's thread."""

from __future__ import annotations

import json
import logging
from collections.abc import MutableMapping
from datetime import datetime, timezone
from io import StringIO
from typing import Any, TextIO

import structlog
from structlog.stdlib import ExtraAdder, ProcessorFormatter, add_log_level, add_logger_name

from wmrt.service.plain import plain

Event = MutableMapping[str, Any]


def formatter(form: str) -> logging.Formatter:
    """Formats records of any logger.

    Args:
        form: ``json``: one object a line with ``at``, ``level``, ``logger``, ``event``, and what
            else is known; ``text``: the same for reading.
    """
    if form == "json":
        last: list[Any] = [structlog.processors.format_exc_info, _json]
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=False,
            pad_event_to=0,
            repr_native_str=True,  # no value breaks a line
            exception_formatter=_indented,
            timestamp_key="at",
        )
        last = [_one_line, renderer]
    return ProcessorFormatter(
        foreign_pre_chain=[add_log_level, add_logger_name, ExtraAdder(), _context],
        processors=[_at, ProcessorFormatter.remove_processors_meta, *last],
    )


def _context(_: Any, __: str, event: Event) -> Event:
    """What was bound where it was logged, such as a request; the record's own fields win."""
    event.pop("color_message", None)  # uvicorn's, the same again for terminals
    return {**event.pop("context", {}), **event}


def _at(_: Any, __: str, event: Event) -> Event:
    """When it was logged, not when it is written."""
    at = datetime.fromtimestamp(event["_record"].created, timezone.utc)
    return {"at": at.isoformat(timespec="milliseconds"), **event}


def _one_line(_: Any, __: str, event: Event) -> Event:
    """No text from elsewhere may look like a line of its own, or move a terminal's cursor."""
    event["event"] = _printable(str(event["event"]))
    return event


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _indented(file: TextIO, exc_info: Any) -> None:
    """A traceback, each line of it further in than any event: what an error says may have lines of
    its own."""
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    for line in text.getvalue().strip("\n").split("\n"):
        file.write(f"\n    {_printable(line)}")


def _json(_: Any, __: str, event: Event) -> str:
    head = {key: event.pop(key) for key in ("at", "level", "logger", "event")}
    return json.dumps(plain({**head, **event}), default=str, ensure_ascii=False)
