"""A policy that hangs when told to, and a deadline that passes exactly when it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.control.support import Bench, FakePolicy, answer
from wmrt.control.alarm import Alarm
from wmrt.control.worker import Worker

PATIENCE = 30.0  # seconds after which a test has failed


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
