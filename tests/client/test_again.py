"""Asking again: not faster than a service allows, and not in another process."""

from __future__ import annotations

import errno
import os
import resource
import socket
import ssl
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.client.support import QUICK
from tests.service.doubles import service
from tests.service.raw import state
from wmrt.client import Backoff, connect
from wmrt.client.line import Line
from wmrt.client.link import Link
from wmrt.core.errors import DeadlineError, ServiceError, UsageError


def test_one_that_is_too_fast_waits_and_keeps_its_connection(tmp_path: Path) -> None:
    with service(tmp_path, rate=50.0) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            began = time.monotonic()
            for i in range(200):
                answer = robot.act(state(i / 1000))
                assert answer.sequence == i and answer.action[0] == pytest.approx(i / 1000)
            assert time.monotonic() - began > 1.5  # 100 at once, 50 a second from there
            assert robot.counters["too_fast"] > 5 and robot.counters["answers"] == 200
            assert robot.counters["attempts"] == 1 and robot.counters["lost"] == 0


def test_one_that_was_taken_after_all_is_not_refused_as_its_own_double(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusal may be an earlier observation's, whose answer nobody waited for."""
    link = Link.__new__(Link)
    said: list[Any] = [(None, ("duplicate", "again", 7)), (None, ("stale", "late", 7))]
    monkeypatch.setattr(link, "next", lambda *_: said.pop(0), raising=False)
    with pytest.raises(ServiceError, match="late"):
        link.answer(None, 7, time.monotonic() + 30.0, True)  # type: ignore[arg-type]
    said[:] = [(None, ("duplicate", "again", 7))]
    with pytest.raises(ServiceError, match="again"):
        link.answer(None, 7, time.monotonic() + 30.0, False)  # type: ignore[arg-type]


def test_a_service_that_lets_in_and_answers_nothing_is_asked_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path) as running:
        robot = connect(running.address, "r1", backoff=Backoff(0.05, 0.4, jitter=0.0))
        assert robot.act(state(0.5)).step == 1
        host = running.host

        def broken(*_: Any) -> None:
            raise RuntimeError("as if it had died of this observation")

        monkeypatch.setattr(host, "submit", broken)
        monkeypatch.setattr(host, "take", broken)
        with pytest.raises(DeadlineError):
            robot.act(state(0.5), deadline=1.5)
        assert 3 <= robot.counters["attempts"] <= 8, robot.counters  # at 0, 50, 150, 350 ... ms
        monkeypatch.undo()
        assert robot.act(state(0.25), deadline=30.0).action[0] == 0.25
        assert robot._link.target.backoff.wait() == 0.05  # it works: begin anew
        robot.close()


def test_what_ended_it_is_told_each_time_and_piles_up_nothing(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        robot = connect(running.address, "r1", **QUICK)
        robot.close()
    depths = []
    for _ in range(5):
        with pytest.raises(ServiceError, match="closed") as caught:
            robot.act(state())
        trace, depth = caught.value.__traceback__, 0
        while trace is not None:
            trace, depth = trace.tb_next, depth + 1
        depths.append(depth)
    assert len(set(depths)) == 1, depths


def test_a_fork_neither_reads_its_parent_s_answers_nor_says_good_bye_for_it(
    tmp_path: Path,
) -> None:
    with service(tmp_path) as running, connect(running.address, "r1", **QUICK) as robot:
        robot.act(state(0.1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # there are threads, and no exec
            child = os.fork()
        if not child:
            told = 1
            try:
                robot.act(state(0.9))
            except UsageError as error:
                told = 0 if "forked" in str(error) else 2
            robot.close()
            os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        answer = robot.act(state(0.2))
        assert answer.sequence == 1 and answer.action[0] == pytest.approx(0.2)
        assert robot.counters["lost"] == 0


@pytest.mark.parametrize("way", ["python", "c"])
def test_a_peer_that_acknowledges_nothing_is_lost_and_not_late(tmp_path: Path, way: str) -> None:
    """The kernel gives up a connection with an error that Python calls a TimeoutError."""
    with service(tmp_path) as running, connect(running.address, "r1", **QUICK) as robot:
        robot.act(state(0.1))
        channel: Any = robot._link._channel
        line, given_up = channel._line, OSError(errno.ETIMEDOUT, "Connection timed out")
        assert isinstance(given_up, TimeoutError)

        def read(*_: Any) -> bytes:
            raise given_up

        class Dead:
            file = None if way == "python" else line.file

            def write(self, *_: Any) -> None: ...
            def close(self) -> None:
                line.close()

            def read(self, *_: Any) -> bytes:
                return read()

        channel._line, channel._receive = Dead(), read
        assert robot.act(state(0.2)).action[0] == pytest.approx(0.2)  # over another one, at once
        assert robot.counters["lost"] == 1 and robot.counters["deadline_misses"] == 0


def test_a_socket_with_a_high_number_can_be_looked_at() -> None:
    """Of a process with more than a thousand of them; under TLS, too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"at most {hard} files here; ulimit -Hn 1200 as root")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    ours, theirs = socket.socketpair()
    try:
        high = socket.socket(fileno=os.dup2(ours.fileno(), 1100))
        wrapped = ssl.SSLSocket.__new__(ssl.SSLSocket)
        socket.socket.__init__(wrapped, fileno=high.detach())
        line = Line(wrapped)
        assert not line.readable()
        theirs.sendall(b"x")
        assert line.readable()
        socket.socket.close(wrapped)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        ours.close()
        theirs.close()


@pytest.mark.parametrize(
    "said",
    [
        {"kind": "opened"},
        {"kind": "opened", "session": "0" * 16, "epoch": "first", "sequence": 0},
        {"kind": "opened", "session": "0" * 16, "epoch": None, "sequence": 0},
        {"kind": "refused", "error": "no"},
        {"kind": "refused", "error": None},
    ],
    ids=str,
)
def test_what_opens_a_session_in_another_form_is_told(
    said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path) as running:
        monkeypatch.setattr(Link, "_open", lambda *_: said)
        with pytest.raises(ServiceError, match="opens no session of version 1") as caught:
            connect(running.address, "r1", **QUICK)
        assert caught.value.name == "malformed"
