"""Clients too many: what they are told, when they ask, and a decoy that says the same."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from tools.intruders import Intruders, Try, decoy, knock, words
from tools.service_load import answers
from tools.service_rig import free_port, serving
from wmrt.client import connect

linux = pytest.mark.skipif(sys.platform != "linux", reason="epoll and /proc: Linux only")


@linux
@pytest.mark.parametrize("named", [True, False])
def test_what_a_client_too_many_is_told_by_the_service_and_by_a_decoy(named: bool) -> None:
    ports: list[int] = []
    with serving(robots=1, rate=2000.0) as service:
        with connect(service.unix, "first", opening=20.0) as robot:
            robot.act({"canary": 0.5, "wait": 0.0, "lane": "left"})
            said = answers(service.port, named)
            assert len(said) == (1 if named else 2)
            threading.Thread(target=decoy, args=(said, ports.append), daemon=True).start()
            while not ports:
                time.sleep(0.01)
            begin = time.monotonic() + 0.2
            tries = [
                Try(begin + 0.01 * i, (service.port, ports[0])[i % 2], i % 2) for i in range(50)
            ]
            heard = Intruders(20, named).run(tries)
            assert robot.act({"canary": -0.5, "wait": 0.0, "lane": "left"}).action[0] == -0.5
            _, own, _ = knock(service.port, words("other", named))
            _, others, _ = knock(ports[0], words("other", named))
            assert own == others == b"".join(said)
        assert knock(service.port, words("first", named))[0] == "served"
    assert Counter((one.group, one.said) for one in heard) == {
        (0, "too_many_robots"): 25, (1, "too_many_robots"): 25,
    }  # fmt: skip
    assert all(one.lag_ms >= 0.0 and 0.0 < one.ms < 10_000.0 for one in heard)


@linux
def test_a_harness_that_is_held_up_says_so() -> None:
    port = free_port()
    now = time.monotonic()
    heard = Intruders(2).run([Try(now - 0.2, port, 7), Try(now + 0.01, port, 7)])
    assert [one.said for one in heard] == ["ConnectionRefusedError"] * 2
    assert [one.group for one in heard] == [7, 7]
    assert heard[0].lag_ms >= 200.0 and heard[1].lag_ms >= 0.0


@linux
def test_nobody_there_is_told_by_its_name() -> None:
    assert knock(free_port(), words("one"))[0] == "ConnectionRefusedError"


@linux
def test_one_that_is_told_nothing_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.intruders.GIVEN_UP", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        assert knock(port, words("one"))[0] == "TimeoutError"
        (heard,) = Intruders(1).run([Try(time.monotonic(), port, 0)])
        assert heard.said == "TimeoutError" and heard.ms >= 200.0


@linux
def test_they_run_when_nobody_else_wants_to() -> None:
    code = "import json, os; from tools.intruders import humble; said = humble()\n"
    code += "print(json.dumps([said, os.sched_getscheduler(0), os.nice(0)]))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, scheduler, nice = json.loads(out.stdout)
    assert nice == 19
    assert (scheduler == os.SCHED_IDLE) is ("SCHED_IDLE" in said)
