"""The client against a service: steps, deadlines, resets, newest answers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.client.support import QUICK, held
from tests.core.codecs import MOSTLY, arm
from tests.house.tree import ROOT
from tests.service.doubles import service, until
from tests.service.raw import state
from wmrt.client import connect
from wmrt.core.errors import DeadlineError, ServiceError


@pytest.fixture(params=MOSTLY, autouse=True)
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes and reads the messages: all of it holds for both."""
    arm(request.param, monkeypatch)


def test_it_loads_no_torch_and_no_server() -> None:
    code = (
        "import wmrt.client, sys; heavy = {'torch', 'fastapi', 'gymnasium', 'pydantic', 'msgspec'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("encoding", ["floats", "msgpack", "json"])
def test_a_control_step(tmp_path: Path, encoding: Any) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", encoding=encoding, **QUICK) as robot:
            answer = robot.act(state(0.25), captured_ns=time.monotonic_ns())
            assert answer.action.dtype == np.float32 and answer.action[0] == 0.25
            assert answer.source == "policy" and answer.breakers == "closed" and not answer.late
            assert answer.round_trip_ns > answer.act_ns >= (answer.policy_ns or 0) > 0
            assert (robot.period, robot.clock, robot.epoch) == (0.01, "system", 0)
            assert robot.actions.names == ("a", "b") and robot.state == "connected"
            robot.reset([0.5, 0.5])
            assert robot.epoch == 1
            assert robot.act(state(0.5)).epoch == 1
            assert robot.counters["answers"] == 2
        assert robot.state == "closed"
        with pytest.raises(ServiceError, match="closed"):
            robot.act(state())


def test_a_deadline_that_never_comes(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", deadline=9.9e8, opening=9.9e8) as robot:
            assert robot.act(state(0.25)).action[0] == 0.25
            robot.send(state(0.5))
            assert robot.receive().action[0] == 0.5
            robot.reset()


@pytest.mark.parametrize("address", ["tcp", "unix"])
def test_over_both_kinds_of_socket(tmp_path: Path, address: str) -> None:
    with service(tmp_path, tcp=True, token="t" * 32) as running:
        where = running.address if address == "unix" else running.tcp.replace("http", "ws")
        with connect(where, "r1", token="t" * 32, **QUICK) as robot:
            assert robot.act(state(0.5)).action[0] == 0.5
        with pytest.raises(ServiceError, match="HTTP 401") as caught:
            connect(where, "r1", token="wrong")
        assert caught.value.name == "unauthorized"


def test_a_deadline_is_honoured_and_its_answer_dropped(tmp_path: Path) -> None:
    go, seat = held()
    with service(tmp_path, [seat]) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            robot.act(state(0.1))
            go.clear()
            asked, began = seat.asked, time.monotonic()
            with pytest.raises(DeadlineError, match="sequence 1"):
                robot.act(state(0.2), deadline=0.5)
            assert 0.5 <= time.monotonic() - began < 5.0
            assert robot.counters["deadline_misses"] == 1
            until(lambda: seat.asked > asked)  # it is in work, and cannot be replaced any more
            go.set()
            until(lambda: running.host.registry.places["r1"].session.counts["answered"] == 2)
            assert robot.act(state(0.3)).action[0] == np.float32(0.3)  # and not 0.2
            assert robot.counters["late_answers"] == 1


def test_a_reset_that_was_not_answered_in_time_is_caught_up_with(tmp_path: Path) -> None:
    """The service is in the new epoch, and the answer that would tell was not waited for."""
    go, seat = held()
    with service(tmp_path, [seat]) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            go.clear()
            asked = seat.asked
            robot.send(state(0.1))
            until(lambda: seat.asked > asked)
            with pytest.raises(DeadlineError, match="reset"):  # it waits for the step
                robot.reset(deadline=0.2)
            go.set()
            assert robot.act(state(0.2)).epoch == robot.epoch == 1
            robot.reset()
            assert robot.act(state(0.3)).epoch == robot.epoch == 2


@pytest.mark.parametrize("encoding", ["floats", "msgpack", "json"])
def test_a_reset_that_is_refused_changes_nothing(tmp_path: Path, encoding: Any) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", encoding=encoding, **QUICK) as robot:
            with pytest.raises(ServiceError, match="2 finite numbers"):
                robot.reset([0.0] * 3)
            assert robot.act(state(0.5)).epoch == 0


def test_a_deadline_that_is_over_at_once_leaves_the_connection(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            for _ in range(3):
                with pytest.raises(DeadlineError, match="in time"):
                    robot.act(state(0.5), deadline=1e-9)
            assert robot.act(state(0.5)).action[0] == 0.5
            assert robot.counters["connected"] == 1 and robot.counters["lost"] == 0


def test_the_newest_answer_wins(tmp_path: Path) -> None:
    go, seat = held()
    with service(tmp_path, [seat]) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            robot.act(state(0.1))
            counts = running.host.registry.places["r1"].session.counts
            for i in range(3):  # each of them is answered
                robot.send(state(i / 10))
                until(lambda want=i + 2: counts["answered"] == want)
            time.sleep(0.05)  # the last answer is on its way
            answer = robot.receive()
            assert answer.sequence >= 1
            older = robot.counters["older_answers"]
            assert older == answer.sequence - 1 and answer.action[0] == np.float32(
                (answer.sequence - 1) / 10
            )
            go.clear()
            robot.send(state(0.5))
            with pytest.raises(DeadlineError):
                robot.receive(0.05)
            go.set()
            assert robot.receive().action[0] == 0.5


def test_a_stream_has_one_answer_or_none_for_each_state(tmp_path: Path) -> None:
    with service(tmp_path) as running, connect(running.address, "r1", **QUICK) as robot:
        answers = list(robot.stream(state(i / 10) for i in range(5)))
        got = [answer.sequence for answer in answers if answer is not None]
        assert len(answers) == 5 and got == sorted(set(got)) and got[-1] == 4


def test_whoever_sends_and_never_receives_piles_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wmrt.client.sent.SENT", 8)
    with service(tmp_path) as running, connect(running.address, "r1", **QUICK) as robot:
        for i in range(20):
            robot.send(state(i / 20))
        assert len(robot._sent) == 8
        began = time.monotonic_ns()
        while (answer := robot.receive()).sequence < 19:
            assert 0 < answer.round_trip_ns < time.monotonic_ns()
        assert answer.round_trip_ns <= time.monotonic_ns() - began + int(10e9)
        assert len(robot._sent) == 0


def test_a_stream_does_not_stay_behind_after_one_late_answer(tmp_path: Path) -> None:
    """The late one is there when the next state is sent, and is not taken for that one's."""
    go, seat = held()
    with service(tmp_path, [seat]) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            asked: list[int] = []
            session = running.host.registry.places["r1"].session

            def states() -> Any:
                for i in range(6):
                    if i == 2:
                        asked.append(seat.asked)
                        go.clear()
                    if i == 3:
                        until(lambda: seat.asked > asked[0])  # it is in work
                        go.set()
                        until(lambda: session.counts["answered"] == 3)
                    yield state(i / 10)

            limits = iter([30.0, 30.0, 0.3, 30.0, 30.0, 30.0])
            newest = robot._newest
            robot._newest = lambda wanted, _: newest(wanted, next(limits))  # type: ignore[method-assign]
            answers = list(robot.stream(states()))
        told = [None if one is None else one.sequence for one in answers]
        assert told == [0, 1, None, 3, 4, 5]
        assert robot.counters["older_answers"] == 1 and robot.counters["deadline_misses"] == 1


def test_a_stream_gives_an_earlier_answer_at_the_deadline(tmp_path: Path) -> None:
    go, seat = held()
    with service(tmp_path, [seat]) as running:
        with connect(running.address, "r1", **QUICK) as robot:
            robot.send(state(0.1))
            session = running.host.registry.places["r1"].session
            until(lambda: session.counts["answered"] == 1)
            go.clear()
            began = time.monotonic()
            (answer,) = robot.stream([state(0.2)], deadline=0.3)
            assert answer is not None and answer.sequence == 0 and time.monotonic() - began >= 0.3
            go.set()
            assert robot.receive().sequence == 1
