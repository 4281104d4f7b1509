"""Logs: fields, formats, what is dropped, what never gets in, and that nobody waits for them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.house.tree import ROOT
from tests.service.doubles import CanarySeat, service, until
from wmrt.core.errors import ServiceError
from wmrt.service import logs
from wmrt.service.logs import CAPACITY, Logs, Redactor, log, logs_of, redactor, to_file
from wmrt.service.settings import ServeSettings

TOKEN, OPERATOR, READER = "client-" + "t" * 16, 'oper"ator\\' + "o" * 16, "metrics/+" + "m" * 16


class Lines:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def __call__(self, line: bytes) -> None:
        self.data.append(line)

    @property
    def text(self) -> str:
        return b"".join(self.data).decode()

    @property
    def json(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data]

    def event(self, name: str) -> dict[str, Any]:
        return next(line for line in self.json if line["event"] == name)


@contextlib.contextmanager
def logging_to(lines: Any, **changes: Any) -> Iterator[Logs]:
    with Logs(lines, changes.pop("clean", str), **changes).installed() as own:
        yield own


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
    assert began - 1 < time.time_ns() * 1e-9  # at: when it was logged, see below
    assert all(line.count(b"\n") == 1 for line in lines.data)


def test_a_line_tells_when_it_was_logged_not_when_it_was_written() -> None:
    lines, go = Lines(), threading.Event()

    def slow(line: bytes) -> None:
        go.wait(10.0)
        lines(line)

    with logging_to(slow, form="json"):
        log.info("first")
        time.sleep(0.3)
        log.info("second")
        go.set()
    at = [line["at"] for line in lines.json]
    assert at[0] < at[1] and at[1][:-9] >= at[0][:-9]


def test_text_is_one_line_whatever_it_holds() -> None:
    lines = Lines()
    with logging_to(lines):
        log.warning("opened", operator="A\nfake  line", colour="\x1b[31m")
        logging.getLogger("uvicorn.error").info("GET /\x1b[2J\nat level")
    assert [line.count(b"\n") for line in lines.data] == [1, 1]
    assert "\x1b" not in lines.text and "operator='A\\nfake  line'" in lines.text
    assert "warning" in lines.text and "opened" in lines.text


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


def full_pipe() -> tuple[int, int]:
    """A pipe that takes nothing more: its ends."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETFL, os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(ends[1], b"x" * 4096)
    fcntl.fcntl(ends[1], fcntl.F_SETFL, 0)
    return ends


def test_a_step_is_answered_in_time_whether_or_not_anybody_reads_the_log(tmp_path: Path) -> None:
    """Standard error is a full pipe, the queue is full as well, and every step has something to
    say."""
    reader, writer = full_pipe()
    # Not this thread's own end: that of a process that a person has stopped with Ctrl-S.
    own = Logs(to_file(writer), str, "json")
    with own.installed(), service(tmp_path, tcp=True, deadline=0.5) as running:
        running.host.acted.append(lambda answer: log.warning("talkative", step=answer.step))
        for number in range(CAPACITY + 10):
            log.info("one", number=number)
        assert own.dropped > 0
        before = own.dropped
        raw = running.raw()
        raw.open("r1")
        answers = [raw.acted(sequence) for sequence in range(50)]
        assert not any(answer.late for answer in answers)
        assert {answer.source for answer in answers} == {"policy"}
        until(lambda: own.dropped >= before + 50)
        assert running.host.reasons() == []
        began = time.monotonic()
    assert time.monotonic() - began < 15.0  # it ends, although the pipe is full
    os.close(reader)
    with contextlib.suppress(OSError):
        os.close(writer)


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


def test_a_missed_deadline_is_told_and_then_not_every_time(tmp_path: Path) -> None:
    lines = Lines()
    pauses: list[float] = []
    seat = CanarySeat(lambda: pauses.pop() if pauses else 0.0)
    with logging_to(lines, form="json"):
        with service(tmp_path, [seat], deadline=0.2, clock="step") as running:
            raw = running.raw()
            raw.open("r1")
            raw.acted(0)
            pauses += [0.3] * 4
            assert all(raw.acted(sequence).late for sequence in range(1, 5))
            meter = running.host.registry.places["r1"].meter
            until(lambda: meter.late == 4)
            assert meter.untold == 3
            meter.quiet_until = 0.0
            pauses.append(0.3)
            raw.acted(5)
            until(lambda: meter.late == 5)
    told = [line for line in lines.json if line["event"] == "deadline missed"]
    assert [line["misses"] for line in told] == [1, 4]
    assert told[0]["robot"] == "r1" and told[0]["act_ms"] > 300 and told[0]["level"] == "warning"
    assert logs.QUIET >= 1.0


def test_no_token_gets_into_a_log(tmp_path: Path) -> None:
    """Sent where it belongs and everywhere else: paths, queries, names, other headers."""
    lines = Lines()
    audit = tmp_path / "audit.jsonl"
    tokens = {"token": TOKEN, "operator_token": OPERATOR, "metrics_token": READER}
    settings = ServeSettings(**tokens)
    with logging_to(lines, clean=redactor(settings), form="json", level="debug"):
        with service(tmp_path, tcp=True, audit=audit, **tokens) as running:
            for secret in (TOKEN, OPERATOR, READER):
                put_everywhere(running.tcp, secret)
                log.info("said", anything=secret, shown=repr(secret))
                with contextlib.suppress(ServiceError):
                    running.raw(secret).open(secret[:60])
            wrong = "wrong-" + "w" * 20
            put_everywhere(running.tcp, wrong, only_headers=True)
    written = lines.text + audit.read_text()
    for secret in (*(TOKEN, OPERATOR, READER), "wrong-" + "w" * 20):
        for form in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]):
            assert form not in written
            assert json.dumps(form)[1:-1] not in written
        assert httpx.URL("http://x", params={"t": secret}).query.decode()[2:] not in written
    assert "unauthorized" in written and "[token]" in written


def put_everywhere(url: str, secret: str, only_headers: bool = False) -> None:
    with httpx.Client(base_url=url, trust_env=False) as http:
        for scheme in ("Bearer ", "Basic ", "bearer  ", ""):
            http.get("/v1/info", headers={"Authorization": scheme + secret, "User-Agent": secret})
        if only_headers:
            return
        http.get("/v1/info", headers={"X-Request-ID": secret})
        http.get("/v1/info", params={"token": secret})
        http.get(httpx.URL(url).copy_with(path=f"/{secret}"))
        own = {"Authorization": f"Bearer {secret}"}
        message = {"robot": secret, "operator": secret}
        for action in ("reset", "estop"):
            http.post(f"/v1/breakers/{action}", json=message, headers=own)
        http.post("/v1/reset", json={"robot": secret}, headers=own)


def test_a_redactor_knows_a_token_by_every_spelling() -> None:
    token = 'a"b\\c/d+e' + "f" * 10
    clean = Redactor([SecretStr(token), None])
    for spelled in (token, json.dumps(token), "a%22b%5Cc%2Fd%2Be" + "f" * 10, repr(token)):
        assert token[-8:] not in clean(f"x {spelled} y"), spelled
    assert clean("Bearer abc.def, x") == "Bearer [token] x"
    assert Redactor()("nothing to hide") == "nothing to hide"


def test_a_connection_that_is_refused_is_one_line_and_many_are_few(tmp_path: Path) -> None:
    """uvicorn took a refusal for a fault of the application, and told each of them three times."""
    lines = Lines()
    with logging_to(lines, form="json"), service(tmp_path, token=TOKEN) as running:
        for _ in range(3):
            with pytest.raises(ServiceError, match="401"):
                running.raw("wrong")
        running.raw(TOKEN).open()
        until(lambda: any(line["event"] == "opened" for line in lines.json))
    told = [line for line in lines.json if line["logger"] != "uvicorn.error"]
    assert [line["event"] for line in told].count("unauthorized") == 3
    assert not [line for line in lines.json if line["level"] == "error"]
    assert not any("WebSocket" in line["event"] or "connection" in line["event"] for line in told)


def test_lines_that_whoever_connects_brings_about_are_bounded(tmp_path: Path) -> None:
    lines = Lines()
    with logging_to(lines, form="json"):
        connections = logging.getLogger(logs.CONNECTIONS)
        for i in range(1000):
            connections.warning("garbage came from %s", i)
            connections.info("connected")
        until(lambda: len(lines.data) >= 100)
        time.sleep(0.3)
        connections.warning("garbage came from %s", "x")
    texts = [line["event"] for line in lines.json]
    assert 101 <= len(texts) < 900 and "connected" not in texts
    assert texts[0] == "garbage came from 0" and "more were left out)" in texts[-1]
    assert any("more were left out)" in text for text in texts)


def test_requests_and_connections_have_names(tmp_path: Path) -> None:
    lines = Lines()
    with logging_to(lines, form="json"):
        with service(tmp_path, tcp=True, token=TOKEN) as running:
            own = {"Authorization": f"Bearer {TOKEN}"}
            with httpx.Client(base_url=running.tcp, trust_env=False) as http:
                answer = http.get("/v1/info", headers=own | {"X-Request-ID": "mine-1"})
                assert answer.headers["x-request-id"] == "mine-1"
                odd = http.get("/v1/info", headers=own | {"X-Request-ID": "a b<script>"})
                assert len(odd.headers["x-request-id"]) == 16
                refused = http.get("/v1/info", headers={"X-Request-ID": "mine-2"})
                assert refused.headers["x-request-id"] == "mine-2"
                opened = http.post(
                    "/v1/reset", json={"robot": "r1"}, headers=own | {"X-Request-ID": "mine-3"}
                ).json()
            session = running.host.registry.places["r1"].session

            raw = running.raw(TOKEN)
            raw.open("r1", session=opened["session"])
            running.host.acted.append(lambda _: log.info("stepped"))
            raw.acted(0)
            until(lambda: any(line["event"] == "opened" and line["resumed"] for line in lines.json))
    assert lines.event("unauthorized")["request"] == "mine-2"
    assert lines.event("unauthorized")["level"] == "warning"
    told = lines.event("opened")
    assert (told["request"], told["robot"], told["session"]) == ("mine-3", "r1", session.digest)
    assert opened["session"] not in lines.text  # who knows it can speak for the robot


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
