"""What the service logs while it serves, and what never gets in."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from tests.service.doubles import CanarySeat, Lines, full_pipe, logging_to, service, until
from wmrt.client.channel import Lost
from wmrt.core.errors import ServiceError
from wmrt.core.wire import Acted
from wmrt.service import logs
from wmrt.service.logs import CAPACITY, Logs, Redactor, log, redactor, to_file
from wmrt.service.meter import STALLS, Meter
from wmrt.service.settings import ServeSettings

TOKEN, OPERATOR, READER = "client-" + "t" * 16, 'oper"ator\\' + "o" * 16, "metrics/+" + "m" * 16


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


def test_a_text_that_is_no_utf_8_is_one_line(tmp_path: Path) -> None:
    """uvicorn logs where in itself it found that."""
    lines = Lines()
    with logging_to(lines, form="json"), service(tmp_path) as running:
        raw = running.raw()
        raw.open()
        raw.channel._line.write(b"\x81\x82" + bytes(4) + b"\xff\xfe", time.monotonic() + 60.0)
        until(lambda: any("UTF-8" in line["event"] for line in lines.json))
    told = [line for line in lines.json if "UTF-8" in line["event"]]
    assert len(told) == 1 and told[0]["logger"] == logs.CONNECTIONS
    assert "Traceback" not in lines.text and "exception" not in told[0]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("what", ["opening", "a text", "a step"])
def test_a_fault_of_ours_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("something of ours broke")

    lines = Lines()
    with logging_to(lines, form="json"), service(tmp_path) as running:
        raw = running.raw()
        if what == "opening":
            monkeypatch.setattr(running.host, "open", fails)
            with pytest.raises(Lost):
                raw.open()
        else:
            raw.open()
            monkeypatch.setattr(running.host, "submit", fails)
            monkeypatch.setattr(running.host, "take", fails)
            monkeypatch.setattr(running.host, "end_episode", fails)
            text = {"kind": "reset", "version": 1, "robot": "r1"}
            raw.say(text if what == "a text" else raw.packed(0))
        until(lambda: "something of ours broke" in lines.text)
    told = [line for line in lines.json if "something of ours broke" in json.dumps(line)]
    assert len(told) == 1 and told[0]["level"] == "error"
    assert told[0]["exception"].count("Traceback (most recent call last)") == 1
    assert "RuntimeError: something of ours broke" in told[0]["exception"]
    assert "in fails" in told[0]["exception"]


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


def test_a_step_that_takes_ten_deadlines_is_kept_piece_by_piece(tmp_path: Path) -> None:
    lines, seat = Lines(), CanarySeat()
    options: dict[str, Any] = {"deadline": 0.02, "deadline_by": "thread", "clock": "step"}
    with logging_to(lines, form="json"), service(tmp_path, [seat], tcp=True, **options) as running:
        raw = running.raw()
        raw.open("r1")
        raw.acted(0)
        meter = running.host.registry.places["r1"].meter
        until(lambda: meter.step.count == 1)
        meter.stalls.clear()  # of a busy machine
        seat.enter = lambda: time.sleep(0.3)  # type: ignore[method-assign]
        raw.acted(1)
        seat.enter = lambda: None  # type: ignore[method-assign]
        until(lambda: meter.stalls)
        with httpx.Client(base_url=running.tcp, trust_env=False) as http:
            (told,) = http.get("/v1/info").json()["robots"]["r1"]["stalls"][:1]
        assert told["step"] == 2 and 0 <= told["seconds_ago"] < 60
        pieces = ("queue", "policy", "breakers", "reply")
        assert sum(told[name] or 0.0 for name in pieces) >= 0.3
    line = next(one for one in lines.json if one["event"] == "step stalled" and one["step"] == 2)
    assert line["level"] == "error" and line["robot"] == "r1"
    for name in pieces:
        told_ms = None if told[name] is None else round(told[name] * 1e3, 3)
        assert line[f"{name}_ms"] == told_ms


def test_a_step_of_nine_deadlines_is_none() -> None:
    meter = Meter(0.1)
    robot = meter.robot()
    answer = Acted(
        *("r1", 1, 0, 0, 7, (0.0,), "policy", "closed", (), True, 3, None),
        *(200_000_000, 300_000_000, 400_000_000),
    )
    assert meter.acted(answer, 0, robot, 999_000_000) is None and not robot.stalls
    stall = meter.acted(answer, 0, robot, 1_000_000_000)
    assert stall is robot.stalls[-1]
    assert stall[1:] == pytest.approx((7, "policy", 3, 0.2, 0.3, 0.1, 0.4))
    for _ in range(STALLS + 5):
        meter.acted(answer, 0, robot, 2_000_000_000)
    assert len(robot.stalls) == STALLS
    assert meter.acted(answer, 0, None, 2_000_000_000) is not None  # its robot has left
