"""One thread that answers the newest question."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from tests.control.stalls import PATIENCE, until
from wmrt.control import worker as module
from wmrt.control.worker import Bell, Finished, Worker


class Clerk:
    """Answers with the question and whether it restarted; may be held up."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.open.set()
        self.worker: Worker[Any, Any] = Worker(self.answer, "clerk")

    def answer(self, question: Any, restart: bool) -> Any:
        self.entered.set()
        assert self.open.wait(PATIENCE)
        if isinstance(question, BaseException):
            raise question
        return question, restart

    def hold(self, question: Any) -> None:
        """Ask, and return while the answer is under way."""
        self.open.clear()
        self.entered.clear()
        self.worker.ask(question)
        assert self.entered.wait(PATIENCE)

    def next(self) -> Any:
        until(lambda: self.worker.finished)
        return self.worker.take()


def test_an_answer_and_what_it_answers() -> None:
    clerk = Clerk()
    assert clerk.worker.ask("a") is None
    assert clerk.worker.wait(PATIENCE)
    assert clerk.worker.take() == Finished("a", ("a", False))
    assert clerk.worker.take() is None and not clerk.worker.wait(0.0)
    clerk.worker.stop()


def test_a_question_of_its_own_needs_no_bell() -> None:
    """What a thread asks itself it looks for next; who waits may bring a question."""
    rung: list[str] = []

    class Counting(Bell):
        def ring(self) -> None:
            rung.append(threading.current_thread().name)
            super().ring()

        def wait(self) -> None:
            super().wait()
            if rung == ["MainThread"]:
                clerk.worker.ask("b")

    clerk = Clerk()
    clerk.worker.bell = Counting()
    clerk.worker.ask("a")
    assert clerk.next() == Finished("b", ("b", False))
    assert rung == ["MainThread"]  # which it replaced
    clerk.worker.ask("c")
    assert clerk.next().question == "c" and rung == ["MainThread"] * 2
    clerk.worker.stop()


def test_the_newest_question_replaces_the_one_that_waits() -> None:
    clerk = Clerk()
    clerk.hold("a")
    assert [clerk.worker.ask(question) for question in "bcd"] == [None, "b", "c"]
    clerk.open.set()
    assert [clerk.next().question for _ in range(2)] == ["a", "d"]
    clerk.hold("e")
    clerk.worker.ask("f")
    assert clerk.worker.clear() == "f" and clerk.worker.clear() is None
    clerk.open.set()
    assert clerk.next().question == "e"
    clerk.worker.stop()


def test_waiting_ends_after_its_time_or_when_somebody_says_so() -> None:
    clerk = Clerk()
    clerk.hold("a")
    began = time.monotonic()
    assert not clerk.worker.wait(0.05) and time.monotonic() - began >= 0.05
    assert not clerk.worker.wait(-1.0)
    threading.Timer(0.05, clerk.worker.interrupt).start()
    assert clerk.worker.wait(1e9)  # more than a lock can wait
    clerk.worker.interrupt()
    clerk.worker.interrupt()
    assert clerk.worker.wait(0.0) and not clerk.worker.wait(0.0)
    clerk.open.set()
    clerk.worker.stop()


def test_a_restart_comes_before_the_next_answer_if_one_is_under_way() -> None:
    clerk = Clerk()
    assert not clerk.worker.restart()
    clerk.worker.ask("a")
    assert clerk.next().answer == ("a", False)
    clerk.hold("b")
    assert clerk.worker.restart() and clerk.worker.restart()
    clerk.worker.ask("c")
    clerk.open.set()
    assert [clerk.next().answer for _ in range(2)] == [("b", False), ("c", True)]
    clerk.worker.ask("d")
    assert clerk.next().answer == ("d", False)
    clerk.hold("e")
    clerk.worker.restart()
    clerk.open.set()
    until(lambda: not clerk.worker._busy)
    assert not clerk.worker.restart()  # the caller does it now, and nobody again
    clerk.worker.ask("f")
    assert [clerk.next().answer for _ in range(2)] == [("e", False), ("f", False)]
    clerk.worker.stop()


def test_what_is_raised_is_handed_over_and_the_thread_goes_on() -> None:
    clerk, stop = Clerk(), KeyboardInterrupt()
    clerk.worker.ask(stop)
    assert clerk.next().answer is stop
    clerk.worker.ask("a")
    assert clerk.next().answer == ("a", False)
    clerk.worker.stop()


@pytest.mark.parametrize("busy", [False, True])
def test_stop_ends_the_thread(busy: bool) -> None:
    clerk = Clerk()
    clerk.hold("a")
    clerk.worker.ask("b")
    if not busy:
        clerk.open.set()
        until(lambda: len(clerk.worker.finished) == 2)
    clerk.worker.stop()
    thread = clerk.worker._thread
    assert thread is not None
    clerk.open.set()
    clerk.worker.join(PATIENCE)
    assert not thread.is_alive() and len(clerk.worker.finished) == 1 + (not busy)
    clerk.worker.ask("c")  # to nobody
    assert not clerk.worker.wait(0.05) or clerk.worker.take() is not None
    Clerk().worker.stop()
    Clerk().worker.join(0.0)


def test_a_thread_that_cannot_start_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clerk = Clerk()

    def fails(thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError, match="can't start"):
            clerk.worker.ask("a")
    assert clerk.worker.ask("b") == "a"
    assert clerk.next().question == "b"
    clerk.worker.stop()


def test_its_thread_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[int] = []
    monkeypatch.setattr(module, "step_back", lambda: where.append(threading.get_native_id()))
    clerk = Clerk()
    clerk.worker.ask("a")
    clerk.next()
    assert clerk.worker._thread is not None
    assert where == [clerk.worker._thread.native_id] != [os.getpid()]
    clerk.worker.stop()
