"""Where a policy's thread waits; what it does with a socket is in `test_owned`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.service.doubles import CanarySeat, owned, service, until
from wmrt.core.errors import UnsupportedError
from wmrt.service.crew import Crew
from wmrt.service.doorbell import Doorbell
from wmrt.service.settings import ServeSettings

_LEFT_RUNNING = """
from wmrt.control.worker import Worker
from wmrt.service.doorbell import Doorbell

worker = Worker(lambda question, restart: question + 1, "asked once")
worker.bell = Doorbell()
worker.ask(1)
assert worker.wait(20.0) and worker.take().answer == 2
"""


def test_a_process_ends_with_a_thread_that_waits() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LEFT_RUNNING], capture_output=True, text=True, timeout=60.0
    )
    assert done.returncode == 0 and done.stderr == ""


def test_a_thread_that_spins_lets_the_event_loop_run(tmp_path: Path, taken: Counter[str]) -> None:
    with service(tmp_path, websocket="owned", spin=2e5, tcp=True) as running:
        raw = running.raw()
        one = owned(running, raw)
        with httpx.Client(base_url=running.tcp, trust_env=False, timeout=20.0) as http:
            for sequence in range(1, 10):
                assert raw.acted(sequence).sequence == sequence
                assert http.get("/v1/info").json()["crew"]["websocket"]["spin_us"] == 2e5
                until(lambda: one._watched)
        raw.channel.drop()  # while it looks for the next one
        until(lambda: not running.server.server_state.connections)
    assert taken["wmrt-policy"] >= 8


def test_to_spin_takes_the_native_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("wmrt.kernels.native.library._library", None)
    monkeypatch.setattr("wmrt.kernels.native.library.PATH", tmp_path / "none.so")
    with pytest.raises(UnsupportedError, match="native library"):
        Crew([CanarySeat()], ServeSettings(cpu=-1, spin=50.0))
    crew = Crew([CanarySeat()], ServeSettings(cpu=-1))
    assert crew.described["websocket"] == {
        "requested": "owned", "resolved": "owned", "spin_us": 0.0,
    }  # fmt: skip
    crew.close()


class Pipe:
    """A source that counts."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()
        self.calls: list[str] = []

    def watch(self) -> int:
        self.calls.append("watch")
        return self.reads

    def take_in(self) -> None:
        self.calls.append("take_in")
        os.read(self.reads, 100)

    def unwatch(self) -> None:
        self.calls.append("unwatch")


@pytest.mark.parametrize("spin", [0.0, 0.001, 10.0])
def test_a_doorbell_tells_who_has_come(spin: float) -> None:
    bell, pipe = Doorbell(spin), Pipe()
    bell.ring()
    bell.ring()
    bell.wait()  # for both
    bell.attach(pipe)
    os.write(pipe.writes, b"x")
    bell.wait()
    bell.ring()
    bell.wait()
    assert pipe.calls == ["watch", "take_in", "watch", "unwatch"]
    waiting = threading.Thread(target=bell.wait)
    waiting.start()
    until(lambda: pipe.calls[-1] == "watch")
    bell.detach(pipe)
    waiting.join(10.0)
    assert not waiting.is_alive() and pipe.calls[-1] == "unwatch"
    os.write(pipe.writes, b"x")
    bell.ring()
    bell.wait()
    assert pipe.calls.count("watch") == 3
    os.close(pipe.reads)
    os.close(pipe.writes)
