"""Steps that are decided where the answer is: nobody waits, and one that is late is sent all the
same. What is decided is tested with both mechanisms in test_watchdog.py and test_consult.py."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.control.stalls import Stalling, until
from tests.control.support import STATE, UNFIT, FakePolicy, answer, constant
from tests.safety.support import PERIOD, Watch
from wmrt.control import StepClock, TimedController
from wmrt.core.errors import SafetyError
from wmrt.safety import State


class Sent:
    """Who was told what, and in which thread."""

    def __init__(self) -> None:
        self.all: list[tuple[list[float], Any, str]] = []

    def __call__(self, action: Any, outcome: Any) -> None:
        assert type(action) is tuple and np.float32(action).tolist() == list(action)
        self.all.append((list(action), outcome, threading.current_thread().name))


def test_the_thread_that_asks_the_policy_sends_its_action() -> None:
    controller, sent = TimedController(constant(0.0, 0.0), PERIOD, 60.0), Sent()
    for n in range(1, 4):
        assert controller.start(STATE, None, sent) is None
        until(lambda: len(sent.all) == n)  # noqa: B023
    assert {name for _, _, name in sent.all} == {"wmrt-policy"}
    assert [outcome.step for _, outcome, _ in sent.all] == [1, 2, 3]
    assert controller.stats()["deadline_by"] == "timer"


def test_an_action_leaves_at_the_deadline_while_the_policy_hangs() -> None:
    forever = threading.Event()
    controller = TimedController(FakePolicy(lambda *_: forever.wait()), PERIOD, 0.05)
    sent = Sent()
    for n in range(1, 5):
        began = time.monotonic()
        assert controller.start(STATE, None, sent) is None
        assert time.monotonic() - began < 5.0
        until(lambda: len(sent.all) == n)  # noqa: B023
        assert time.monotonic() - began >= 0.05
        _, outcome, name = sent.all[-1]
        assert (outcome.late, outcome.source, name) == (True, "fallback", "wmrt-deadline")
        assert outcome.act_ns >= 50_000_000
    forever.set()
    until(lambda: not controller._timed._worker._busy)
    assert len(sent.all) == 4  # nothing is sent twice


def test_a_step_in_which_nobody_is_asked_is_left_to_the_caller() -> None:
    policy = constant(0.0, 0.0)
    controller, sent = TimedController(policy, PERIOD, 60.0), Sent()
    rest = controller.start(UNFIT, None, sent)
    assert rest is not None and not sent.all
    worker = threading.Thread(target=rest, name="mine")
    worker.start()
    worker.join(10.0)
    ((_, outcome, name),) = sent.all
    assert (outcome.source, outcome.after, name) == ("fallback", State.OPEN, "mine")
    assert not policy.seen
    rest()
    assert len(sent.all) == 1


def test_the_next_step_may_be_begun_where_one_is_decided() -> None:
    controller = TimedController(constant(0.0, 0.0), PERIOD, 60.0)
    steps: list[int] = []

    def decided(action: Any, outcome: Any) -> None:
        steps.append(outcome.step)
        if len(steps) < 50:
            controller.start(STATE, None, decided)

    controller.start(STATE, None, decided)
    until(lambda: len(steps) == 50)
    assert steps == list(range(1, 51))


@pytest.mark.parametrize("what", ["reset", "engage", "disengage", "act"])
def test_others_wait_until_the_step_is_decided(what: str) -> None:
    policy = Stalling()
    controller, sent = TimedController(policy, PERIOD, 60.0), Sent()
    policy.stall()
    controller.start(STATE, None, sent)
    assert policy.hung.wait(10.0)
    order: list[str] = []
    do = {
        "reset": controller.reset,
        "engage": lambda: controller.engage("Ada"),
        "disengage": controller.disengage,
        "act": lambda: controller.act(STATE),
    }[what]
    thread = threading.Thread(target=lambda: (do(), order.append(f"{len(sent.all)} sent")))
    thread.start()
    time.sleep(0.05)
    assert not order
    policy.go()
    thread.join(10.0)
    assert order == ["1 sent"]


def test_a_stop_is_sent_at_once() -> None:
    policy = Stalling()
    controller, sent = TimedController(policy, PERIOD, 3600.0), Sent()
    policy.stall()
    controller.start(STATE, None, sent)
    assert policy.hung.wait(10.0)
    controller.estop()
    until(lambda: sent.all)
    _, outcome, name = sent.all[0]
    assert (outcome.after, outcome.source, name) == (State.LATCHED, "fallback", "wmrt-deadline")
    policy.go()


def test_act_within_a_step_is_an_error_of_whoever_calls_it() -> None:
    raised: list[BaseException] = []

    def fallback(state: Any, last: Any) -> Any:
        try:
            return controller.act(STATE)
        except BaseException as error:
            raised.append(error)
            raise

    controller = TimedController(constant(0.0, 0.0), PERIOD, 60.0, fallback=fallback)
    controller.act(UNFIT)
    assert isinstance(raised[0], SafetyError) and "under way" in str(raised[0])
    assert controller.last is not None and controller.last.source == "fallback"


def test_a_clock_that_fails_latches_and_something_is_sent() -> None:
    class Broken:
        def now_ns(self) -> int:
            raise OSError

    controller, sent = TimedController(constant(0.0, 0.0), PERIOD, 60.0), Sent()
    controller.clock = Broken()
    rest = controller.start(STATE, None, sent)
    assert rest is not None
    rest()
    assert sent.all[0][0] == [0.0, 0.0] and controller.breakers.state is State.LATCHED


@pytest.mark.parametrize("where", ["policy", "recorder"])
def test_a_request_to_stop_that_nobody_waits_for_latches(where: str) -> None:
    def stops(*_: Any) -> Any:
        raise SystemExit

    policy = FakePolicy(stops if where == "policy" else lambda s, p: answer(p))
    recorder = type("Stops", (), {"record": stops, "command": lambda *a: None})()
    options = {"recorder": recorder} if where == "recorder" else {}
    controller, sent = TimedController(policy, PERIOD, 60.0, **options), Sent()
    controller.start(STATE, None, sent)
    until(lambda: sent.all)
    assert sent.all[0][0] == [0.0, 0.0]
    assert (controller.breakers.state is State.LATCHED) is (where == "policy")


def test_resampling_moves_in_parts_and_asks_in_between() -> None:
    policy = FakePolicy(lambda s, p: answer(np.float32([0.03, 0.0])))
    policy.period = 3 * PERIOD  # type: ignore[attr-defined]
    controller = TimedController(policy, PERIOD, 60.0, resample="linear", clock=StepClock(PERIOD))
    sent = Sent()
    for n in range(1, 7):
        rest = controller.start(STATE, None, sent)
        assert (rest is None) is (n in (1, 4))
        if rest is not None:
            rest()
        until(lambda: len(sent.all) == n)  # noqa: B023
    got = [action[0] for action, _, _ in sent.all]
    assert got == pytest.approx([0.01, 0.02, 0.03, 0.03, 0.03, 0.03])
    assert len(policy.seen) == 2


def test_every_step_is_answered_once_and_in_order(seed: int) -> None:
    """In real time, with a policy whose steps end about at the deadline: it and the alarm race."""
    draw = random.Random(seed)
    policy = FakePolicy(
        lambda s, p: (time.sleep(draw.uniform(0.0, 0.004)), answer(p + np.float32([0.01, 0])))[1]
    )
    controller = TimedController(policy, PERIOD, 0.002)
    watch = Watch(policy.actions, controller.breakers.reference)
    got: list[Any] = []
    for n in range(1, 301):
        controller.start(STATE, None, lambda action, outcome: got.append((list(action), outcome)))
        until(lambda: len(got) == n)  # noqa: B023
        if n % 50 == 0:
            controller.reset()
    until(lambda: not controller._timed._worker._busy)
    time.sleep(0.01)
    assert [outcome.step for _, outcome in got] == list(range(1, 301))
    for n, (action, outcome) in enumerate(got):
        if n % 50 == 0:
            watch.restart((0.0, 0.0))
        watch.see(outcome.now_ns, action)
    late = sum(outcome.late for _, outcome in got)
    stats = controller.stats()
    assert stats["deadline_misses"] == late and 0 < late
    assert "internal" not in stats["causes"] and stats["record_failures"] == 0


@pytest.mark.parametrize("name", ["wmrt-deadline", "wmrt-policy"])
def test_a_thread_that_cannot_be_had_latches_and_is_tried_again(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a container has a limit of threads; neither `act` nor the next step waits for it."""
    controller, sent = TimedController(constant(0.5, 0.0), PERIOD, 60.0), Sent()
    start = threading.Thread.start

    def none(self: threading.Thread) -> None:
        if self.name == name:
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", none)
        rest = controller.start(STATE, None, sent)
        assert rest is not None and not sent.all
        rest()
    assert sent.all[0][0] == [0.0, 0.0] and controller.breakers.state is State.LATCHED
    assert controller.act(STATE).tolist() == [0.0, 0.0]  # and the thread is there
    assert controller._timed.alarm is not None and controller._timed.alarm._thread is not None
    assert controller._timed._worker._thread is not None
    controller.close()
