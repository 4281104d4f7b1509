"""Logs: fields, formats, what is dropped, and that nobody waits for them."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from datetime import datetime

import pytest

from tests.house.tree import ROOT
from tests.service.doubles import Lines, full_pipe, logging_to, until
from wmrt.service import logs
from wmrt.service.logs import CAPACITY, Logs, log, logs_of, to_file
from wmrt.service.settings import ServeSettings


def test_importing_the_service_configures_nothing() -> None:
    code = """
import logging
root = logging.getLogger()
before = (root.level, list(root.handlers), logging.getLoggerClass(), logging.lastResort)
import wmrt.service.server, wmrt.service.app, wmrt.cli.serve, structlog
assert (root.level, root.handlers, logging.getLoggerClass(), logging.lastResort) == before
assert not structlog.is_configured()
own = [n for n in logging.root.manager.loggerDict if n.startswith("wmrt")]
for name in own:
    logger = logging.getLogger(name)
    assert (logger.handlers, logger.level, logger.propagate) == ([], 0, True), name
assert own
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def seconds(at: str) -> float:
    """Since 1970; what is written is cut to milliseconds."""
    return datetime.fromisoformat(at).timestamp()


def test_it_gives_the_root_logger_back() -> None:
    root, own = logging.getLogger(), logging.getLogger("wmrt")
    before = (root.handlers[:], root.level, own.level)
    with logging_to(Lines(), level="debug"):
        assert root.handlers != before[0] and own.level == logging.DEBUG
    assert (root.handlers, root.level, own.level) == before


def test_json_lines_have_fields(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines()
    began = time.time_ns() * 1e-9
    with logging_to(lines, form="json"):
        log.info("opened", robot="r1", value=float("nan"), nested={"a": (1, 2)})
        logging.getLogger("uvicorn.error").info("Started %s", "x", extra={"color_message": "y"})
        try:
            raise ValueError("it\nfailed")
        except ValueError:
            log.exception("a fault", robot="r2")
        log.debug("not at this level")
        logging.getLogger("wmrt.other").warning("plain %d", 7)
    first, second, third, fourth = lines.json
    assert (first["event"], first["robot"], first["level"]) == ("opened", "r1", "info")
    assert first["logger"] == "wmrt.service" and first["value"] == "nan"
    assert first["nested"] == {"a": [1, 2]} and first["at"].endswith("+00:00")
    assert second["event"] == "Started x" and "color_message" not in second
    assert second["logger"] == "uvicorn.error"
    assert third["level"] == "error" and "ValueError: it\nfailed" in third["exception"]
    assert fourth["event"] == "plain 7"
    assert list(first)[:4] == ["at", "level", "logger", "event"]
    assert began - 1e-3 <= seconds(first["at"]) <= time.time_ns() * 1e-9
    assert all(line.count(b"\n") == 1 for line in lines.data)


def test_a_line_tells_when_it_was_logged_not_when_it_was_written() -> None:
    lines, go = Lines(), threading.Event()

    def slow(line: bytes) -> None:
        go.wait(10.0)
        lines(line)

    with logging_to(slow, form="json"):
        began = time.time_ns() * 1e-9
        log.info("first")
        log.info("second")  # which is formatted when the first one is written
        logged = time.time_ns() * 1e-9
        time.sleep(0.1)
        go.set()
    at = [seconds(line["at"]) for line in lines.json]
    assert began - 1e-3 <= at[0] <= at[1] <= logged


def test_text_is_one_line_whatever_it_holds() -> None:
    lines = Lines()
    with logging_to(lines):
        log.warning("opened", operator="A\nfake  line", colour="\x1b[31m")
        logging.getLogger("uvicorn.error").info("GET /\x1b[2J\nat level")
    assert [line.count(b"\n") for line in lines.data] == [1, 1]
    assert "\x1b" not in lines.text and "operator='A\\nfake  line'" in lines.text
    assert "warning" in lines.text and "opened" in lines.text


def test_no_line_of_a_traceback_looks_like_an_event() -> None:
    lines = Lines()
    forged = "2026-01-01T00:00:00.000+00:00 [info     ] opened"
    with logging_to(lines):
        try:
            try:
                raise ValueError(f"first\n{forged}\r{forged}")
            except ValueError as error:
                raise RuntimeError(f"second\x1b[2J\u2028\n{forged}") from error
        except RuntimeError:
            log.exception("a fault", robot="r2")
        log.info("after")
    first, *told, last = lines.text.rstrip("\n").split("\n")
    assert "a fault" in first and "robot='r2'" in first and "after" in last
    assert all(line.startswith("    ") for line in told)
    assert sum("test_no_line_of_a_traceback" in line for line in told) == 2  # where both were
    assert [line.strip() for line in told].count(forged) == 1  # what is left of the second
    assert "    Traceback (most recent call last):" in told and "\x1b" not in lines.text
    assert not {"\r", "\u2028"} & set(lines.text)


def test_arguments_are_those_of_the_moment() -> None:
    lines, held = Lines(), [1]
    with logging_to(lines, form="json"):
        logging.getLogger("wmrt.x").warning("held %s", held)
        held.append(2)
    assert lines.json[0]["event"] == "held [1]"


def test_debugging_is_for_this_package_alone() -> None:
    lines = Lines()
    with logging_to(lines, form="json", level="debug"):
        log.debug("ours")
        logging.getLogger("websockets.server").debug("< Authorization: Bearer x")
        logging.getLogger("uvicorn.error").info("theirs")
    assert [line["event"] for line in lines.json] == ["ours", "theirs"]
    lines = Lines()
    with logging_to(lines, form="json", level="error"):
        log.warning("no")
        logging.getLogger("uvicorn.error").warning("no")
        log.error("yes")
    assert [line["event"] for line in lines.json] == ["yes"]


def test_what_is_not_read_is_dropped_counted_and_told() -> None:
    lines, go = Lines(), threading.Event()

    def stuck(line: bytes) -> None:
        go.wait(60.0)
        lines(line)

    with logging_to(stuck, form="json") as own:
        for number in range(CAPACITY + 100):
            log.info("one", number=number)
        dropped = own.dropped
        assert 99 <= dropped <= 100  # one may be in the writer's hands
        go.set()
        until(lambda: len(lines.data) == CAPACITY + 100 - dropped + 1)
    assert (
        lines.json[-1]["event"] == f"{dropped} log records were dropped: nobody read them in time"
    )
    numbers = [line["number"] for line in lines.json[:-1]]
    assert numbers == list(range(len(numbers)))  # the first ones are kept, in order


def test_what_cannot_be_written_is_counted() -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    with logging_to(to_file(os.open("/dev/full", os.O_WRONLY)), form="json") as own:
        log.info("lost")
        until(lambda: own.dropped >= 1)
    lines = Lines()
    with logging_to(lines, form="json") as own:
        logging.getLogger("wmrt.x").warning("%s", Odd())
        log.info("a", field=Odd())
        log.info("b")
        until(lambda: lines.data)
    assert own.dropped == 2 and lines.event("b")


def test_a_pipe_that_does_not_wait_is_waited_for() -> None:
    reader, writer = full_pipe()
    fcntl.fcntl(writer, fcntl.F_SETFL, os.O_NONBLOCK)
    with logging_to(to_file(writer), form="json") as own:
        log.info("at last")
        time.sleep(0.1)
        seen = b""
        while b"at last" not in seen:
            seen = os.read(reader, 1 << 20)
    assert own.dropped == 0
    os.close(reader)
    os.close(writer)


def test_the_settings_choose(capfd: pytest.CaptureFixture[str]) -> None:
    with logs_of(ServeSettings(log_format="json", log_level="debug")).installed():
        log.debug("to standard error")
    assert json.loads(capfd.readouterr().err)["event"] == "to standard error"


def test_a_queue_that_is_full_at_the_end_does_not_keep_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "PARTING", 0.2)
    go = threading.Event()
    own = Logs(lambda line: go.wait(60.0), str)
    own._handler.queue = queue.Queue(2)
    began = time.monotonic()
    with own.installed():
        for _ in range(10):
            log.info("one")
    assert time.monotonic() - began < 10.0
    go.set()
