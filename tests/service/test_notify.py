"""What systemd is told, over a socket of our own; and the whole process under it."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.house.tree import ROOT
from tests.service.doubles import CanarySeat, service, until
from tests.service.test_server import http_status
from tools.service_latency import whole_state
from wmrt.client import connect
from wmrt.core.errors import UsageError
from wmrt.service.notify import Notifier


class Manager:
    """A service manager: keeps what it is told, and when."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address[0] == "@" else address)
        self.told: list[tuple[float, str]] = []

    def environment(self, **further: str) -> dict[str, str]:
        return {"NOTIFY_SOCKET": self.address, **further}

    def listen(self, true: Callable[[], Any], seconds: float = 20.0) -> None:
        """Until something is so."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"it did not come to be; told {self.told[-5:]}"
            self.socket.settimeout(0.05)
            try:
                lines = self.socket.recv(4096).decode().split("\n")
            except TimeoutError:
                continue
            self.told += [(time.monotonic(), line) for line in lines]

    def lines(self) -> list[str]:
        return [line for _, line in self.told]

    def status(self) -> str:
        return next(line[7:] for line in reversed(self.lines()) if line.startswith("STATUS="))

    def silence(self) -> float:
        """Seconds since the watchdog was last fed."""
        return time.monotonic() - max(at for at, line in self.told if line == "WATCHDOG=1")


@pytest.fixture
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    abstract = getattr(request, "param", "path") == "abstract"
    name = f"@wmrt-{secrets.token_hex(8)}" if abstract else f"{tmp_path}/n"
    made = Manager(name)
    yield made
    made.socket.close()


def test_nobody_listens_without_a_manager() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "1000000"})
    assert not notifier.wanted and notifier.watchdog is None


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "2500000"}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(os.getpid())}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_the_watchdog_is_for_the_process_that_is_meant(
    given: dict[str, str], seconds: float | None
) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/nowhere", **given}).watchdog == seconds


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"NOTIFY_SOCKET": "run/notify"}, "NOTIFY_SOCKET='run/notify': an absolute path"),
        ({"NOTIFY_SOCKET": "vsock:2:1"}, "NOTIFY_SOCKET='vsock"),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "0"}, "WATCHDOG_USEC='0': micro"),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "-1"}, "WATCHDOG_USEC='-1': micro"),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"}, "WATCHDOG_USEC='soon': micro"),
    ],
)
def test_an_environment_that_is_none_is_told(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Notifier(given)


def test_a_manager_that_is_gone_costs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": "/nowhere/n"})
    assert not notifier.send("READY=1") and not notifier.send("READY=1")
    assert caplog.text.count("is not reached") == 1
    notifier.close()


def test_a_manager_that_does_not_read_is_not_waited_for(manager: Manager) -> None:
    notifier = Notifier(manager.environment())
    began = time.monotonic()
    sent = [notifier.send("WATCHDOG=1") for _ in range(2000)]
    assert sent[0] and not sent[-1] and time.monotonic() - began < 5.0
    notifier.close()


@pytest.fixture
def listening(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> Manager:
    for name, value in manager.environment(WATCHDOG_USEC="400000").items():
        monkeypatch.setenv(name, value)
    return manager


@pytest.mark.parametrize("manager", ["path", "abstract"], indirect=True)
def test_a_thread_that_hangs_is_not_covered_up(listening: Manager, tmp_path: Path) -> None:
    """The controller answers at its deadline all the while; the watchdog is not fed."""
    go = threading.Event()
    go.set()
    seat = CanarySeat(lambda: go.wait(60.0) * 0.0)
    with service(tmp_path, [seat], deadline=0.05, stuck_after=0.5) as running:
        listening.listen(lambda: "READY=1" in listening.lines())
        raw = running.raw()
        raw.open()
        raw.acted(0)
        listening.listen(lambda: "robots: 1" in listening.status())
        go.clear()
        assert raw.acted(1).late
        listening.listen(lambda: "been at one step" in listening.status())
        fed = listening.lines().count("WATCHDOG=1")
        assert fed > 0
        until = time.monotonic() + 1.0
        listening.listen(lambda: time.monotonic() > until)
        assert listening.lines().count("WATCHDOG=1") == fed and listening.silence() > 1.0
        assert http_status(tmp_path / "wmrt.sock", "/healthz") == 503
        go.set()
        listening.listen(lambda: listening.lines().count("WATCHDOG=1") > fed)
        assert http_status(tmp_path / "wmrt.sock", "/healthz") == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("clock", ["system", "step"])
def test_a_thread_that_has_ended_is_told(listening: Manager, tmp_path: Path, clock: str) -> None:
    with service(tmp_path, clock=clock, stuck_after=0.5, deadline=0.5) as running:
        listening.listen(lambda: "READY=1" in listening.lines())
        worker = running.host.crew.workers[0]
        worker.put(sys.exit)
        listening.listen(lambda: "thread wmrt-steps has ended" in listening.status())
        fed = listening.lines().count("WATCHDOG=1")
        until = time.monotonic() + 1.0
        listening.listen(lambda: time.monotonic() > until)
        assert listening.lines().count("WATCHDOG=1") == fed


def test_a_step_that_is_slow_and_no_more_is_no_hang(listening: Manager, tmp_path: Path) -> None:
    with service(tmp_path, [CanarySeat(0.2)], stuck_after=20.0) as running:
        raw = running.raw()
        raw.open()
        for sequence in range(5):
            raw.acted(sequence)
        fed = listening.lines().count("WATCHDOG=1")
        listening.listen(lambda: listening.lines().count("WATCHDOG=1") > fed)
        assert not any("at one step" in line for line in listening.lines())


#: `wmrt serve` whose steps wait while a file is there, and end their thread while another is.
_HELD = """
import pathlib, sys, time
from wmrt.runtime.world_model import WorldModel
hold, end = pathlib.Path(sys.argv.pop(1)), pathlib.Path(sys.argv.pop(1))
step = WorldModel.step
def held(self, *arguments, **further):
    while hold.exists():
        time.sleep(0.01)
    if end.exists():
        sys.exit()
    return step(self, *arguments, **further)
WorldModel.step = held
from wmrt.cli.main import main
sys.exit(main())
"""


@pytest.fixture
def process(
    request: pytest.FixtureRequest, manager: Manager, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "hold").touch()
    deadline_by = getattr(request, "param", "timer")
    own = {**os.environ, **manager.environment(WATCHDOG_USEC="1000000", PYTHONPATH=str(ROOT))}
    arguments = ["serve", "--threads", "1", "--socket", f"{tmp_path}/s", "--deadline", "0.1"]
    made = subprocess.Popen(
        [sys.executable, "-c", _HELD, f"{tmp_path}/hold", f"{tmp_path}/end", *arguments],
        env={**own, "WMRT_SERVE_STUCK_AFTER": "1.5", "WMRT_SERVE_DEADLINE_BY": deadline_by},
        cwd=ROOT, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    yield made
    made.kill()
    made.wait()


def test_the_command_under_a_manager(
    process: subprocess.Popen[bytes], manager: Manager, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    manager.listen(lambda: "STATUS=the model is warming up" in manager.lines(), 300.0)
    assert http_status(tmp_path / "s", "/readyz") == 503
    manager.listen(lambda: manager.lines().count("WATCHDOG=1") > 2)  # and alive all the while
    assert "READY=1" not in manager.lines()
    hold.unlink()
    manager.listen(lambda: "READY=1" in manager.lines(), 60.0)
    assert http_status(tmp_path / "s", "/readyz") == 200

    def fed() -> int:
        return manager.lines().count("WATCHDOG=1")

    with connect(f"unix:{tmp_path}/s", "car", deadline=60.0) as robot:
        state = whole_state(robot.schema)
        robot.act(state)
        hold.touch()
        assert robot.act(state).late  # a model that hangs, and a robot served
        manager.listen(lambda: "been at one step" in manager.status())
        manager.listen(lambda: manager.silence() > 2.0)
        last = fed()
        hold.unlink()
        manager.listen(lambda: fed() > last)
        process.send_signal(signal.SIGSTOP)  # nothing turns at all
        try:
            until(lambda: manager.silence() > 2.0)
            at = fed()
        finally:
            process.send_signal(signal.SIGCONT)
        manager.listen(lambda: fed() > at + 1)
    process.send_signal(signal.SIGTERM)
    manager.listen(lambda: "STOPPING=1" in manager.lines())
    assert process.wait(60.0) == 0 and manager.lines().count("READY=1") == 1


@pytest.mark.parametrize("process", ["thread", "timer"], indirect=True)
def test_a_model_that_ends_its_thread_is_found(
    request: pytest.FixtureRequest,
    process: subprocess.Popen[bytes],
    manager: Manager,
    tmp_path: Path,
) -> None:
    """Where a thread waits for the policy, it ends; where none does, the robot is latched."""
    (tmp_path / "hold").unlink()
    manager.listen(lambda: "READY=1" in manager.lines(), 300.0)
    with connect(f"unix:{tmp_path}/s", "car", deadline=2.0) as robot:
        (tmp_path / "end").touch()
        robot.send(whole_state(robot.schema))
        if request.node.callspec.params["process"] == "thread":
            manager.listen(lambda: "has ended" in manager.status())
            manager.listen(lambda: manager.silence() > 2.0)
        else:
            manager.listen(lambda: "latched" in manager.status())
            (tmp_path / "end").unlink()
            assert robot.act(whole_state(robot.schema)).breakers == "latched"
    process.send_signal(signal.SIGTERM)  # and what is left of it can be stopped
    assert process.wait(60.0) == 0
