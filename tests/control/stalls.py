"""A policy that hangs when told to, and a deadline that passes exactly when it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.control.support import STATE, Bench, FakePolicy, answer
from wmrt.control import TimedController
from wmrt.control.alarm import Alarm
from wmrt.control.worker import Worker

PATIENCE = 30.0  # seconds after which a test has failed
#: Row n is what is planned for n steps later.
CHUNK = np.arange(1, 9, dtype=np.float32)[:, None] * np.float32([0.05, 0.0])


def until(condition: Callable[[], object]) -> None:
    """Wait for another thread."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.0002)


class Stalling(FakePolicy):
    """Answers at once; after `stall` the next step hangs until `go`. Thread-safe enough for one
    caller and one worker.

    Attributes:
        log: step by step the speed it saw; "reset" for a reset.
        hung: set while it hangs.
    """

    def __init__(self, respond: Callable[[Any, Any], Any] | None = None) -> None:
        super().__init__(self._answer)
        self.respond = respond or (lambda state, previous: answer(previous))
        self.log: list[Any] = []
        self.hung, self._stall, self._go = threading.Event(), False, threading.Event()

    def stall(self) -> None:
        self._go.clear()
        self._stall = True

    def go(self) -> None:
        """Let the step that hangs return."""
        self._stall = False
        self.hung.clear()
        self._go.set()

    def reset(self) -> None:
        super().reset()
        self.log.append("reset")

    def _answer(self, state: Any, previous: Any) -> Any:
        self.log.append(state["speed"])
        if self._stall:
            self._stall = False
            self.hung.set()
            assert self._go.wait(PATIENCE)
        return self.respond(state, previous)


@pytest.fixture
def stalled(monkeypatch: pytest.MonkeyPatch) -> Stalling:
    """The policy; whoever waits for it gives up as soon as it hangs, and never before."""
    policy = Stalling()

    def wait(worker: Any, seconds: float) -> bool:
        end = time.monotonic() + PATIENCE
        while not worker._told.acquire(True, 0.0005):
            assert time.monotonic() < end, "neither an answer nor a stall"
            if policy.hung.is_set():
                return bool(worker._told.acquire(False))
        return True

    def look(alarm: Any, seconds: float) -> bool:
        while not alarm._wake.acquire(True, 0.0005):
            if policy.hung.is_set() and alarm._armed is not None:
                return bool(alarm._wake.acquire(False))
        return True

    monkeypatch.setattr(Worker, "wait", wait)
    monkeypatch.setattr(Alarm, "_wait", look)
    return policy


def bench(policy: Any, **options: Any) -> Bench:
    """A controller with a watchdog, on manual time."""
    return Bench(policy, watchdog=True, **options)


def idle(made: Bench) -> None:
    """Wait until the policy's thread has nothing left to do."""
    worker: Any = made.controller._consultant._worker  # type: ignore[attr-defined]
    until(lambda: not worker._busy and worker._slot is None)


@pytest.fixture(params=["thread", "timer"], autouse=True)
def mechanism(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test here is run with both: who decides a step differs, and nothing else."""
    if request.param == "timer":
        monkeypatch.setattr("tests.control.support.Controller", TimedController)
        monkeypatch.setattr(request.module, "Controller", TimedController, raising=False)
    return str(request.param)


def seen(n: float) -> dict[str, Any]:
    return STATE | {"speed": float(n)}


class Rows:
    """A recorder that keeps everything."""

    def __init__(self) -> None:
        self.all: list[tuple[Any, Any]] = []

    def record(self, outcome: Any, inputs: Any) -> None:
        self.all.append((outcome, inputs))

    def command(self, name: str, arguments: Any, now_ns: int) -> None:
        self.all.append((name, dict(arguments)))

    @property
    def steps(self) -> list[tuple[Any, Any]]:
        return [row for row in self.all if not isinstance(row[0], str)]

    @property
    def commands(self) -> list[tuple[str, dict[str, Any]]]:
        return [row for row in self.all if isinstance(row[0], str)]
