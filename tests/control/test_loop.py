"""The paced loop: phase, overruns, warnings, failures of what it calls."""

from __future__ import annotations

import logging
import math
import time
from asyncio import CancelledError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.control.support import STATE, FakePolicy, Panic, answer, constant, simulated
from tests.runtime.bench.doubles import FakeTimer
from tests.safety.support import PERIOD
from wmrt.control import Controller, LoopReport, Observed, run_loop
from wmrt.control.loop import Throttle
from wmrt.core.errors import SafetyError, UsageError

MS = 1_000_000


class Stand:
    """A loop on a fake timer, whose policy takes as many milliseconds as it is told."""

    def __init__(self, *durations: float, **options: Any) -> None:
        self.timer = FakeTimer(look=1_000)
        self.durations = list(durations)
        self.begins: list[float] = []
        self.sent: list[Any] = []
        self.said: list[str] = []
        self.policy = FakePolicy(self.answer)
        self.options = {"timer": self.timer, "warn": self.said.append, **options}

    def answer(self, state: Any, previous: Any) -> Any:
        self.begins.append(self.timer.now / MS - 1.0)  # after a lead of 1 ms
        took = self.durations.pop(0) if len(self.durations) > 1 else self.durations[0]
        self.timer.now += round(took * MS)
        return answer([0.1, 0.1])

    def run(self, steps: int, **options: Any) -> LoopReport:
        return run_loop(
            simulated(self.policy), lambda: STATE, self.sent.append,
            **{"steps": steps, **self.options, **options},
        )  # fmt: skip


def test_steps_begin_on_their_ticks_and_do_not_drift() -> None:
    stand = Stand(10.0, 70.0, 30.0)
    report = stand.run(20)
    assert stand.begins == pytest.approx([100.0 * n for n in range(20)], abs=0.1)
    assert report == LoopReport(steps=20, worst_late_ns=report.worst_late_ns)
    assert report.worst_late_ns < MS and stand.said == []
    assert [action.tolist() for action in stand.sent] == [pytest.approx([0.1, 0.1])] * 20


def test_a_tiny_overrun_does_not_lose_a_cycle() -> None:
    stand = Stand(101.0, 50.0)
    report = stand.run(4)
    assert stand.begins == pytest.approx([0.0, 101.0, 200.0, 300.0], abs=0.1)
    assert (report.skipped, report.late, stand.said) == (0, 0, [])
    report = Stand(101.0).run(200)
    assert report.skipped == pytest.approx(4, abs=1) and report.late > 100
    assert Stand(101.0).run(200, grace=0.0).skipped == 199


def test_a_long_one_skips_and_keeps_the_phase() -> None:
    stand = Stand(270.0, 50.0)
    report = stand.run(3)
    assert stand.begins == pytest.approx([0.0, 300.0, 400.0], abs=0.1)
    assert report.skipped == 2
    assert stand.said == ["control loop: 2 cycles skipped, 2 in all"]


def test_warnings_are_throttled() -> None:
    stand = Stand(160.0)
    assert stand.run(120, warn_every=5.0).skipped == 119
    assert len(stand.said) == pytest.approx(120 * 0.2 / 5.0, abs=1)
    assert stand.said[1] == "control loop: 1 cycles skipped, 26 in all (24 more warnings since " \
        "the last)"  # fmt: skip


def test_the_log_gets_them_by_default(caplog: pytest.LogCaptureFixture) -> None:
    stand = Stand(160.0)
    del stand.options["warn"]
    with caplog.at_level(logging.WARNING):
        stand.run(10)
    assert [record.name for record in caplog.records] == ["wmrt.control.loop"]


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("error", [OSError("no bus"), Wordless(), CancelledError(), Panic("rust")])
def test_a_sensor_that_fails_is_unfit_input(error: BaseException) -> None:
    stand = Stand(1.0)

    def fails() -> Any:
        raise error

    controller = simulated(stand.policy)
    report = run_loop(controller, fails, stand.sent.append, steps=3, **stand.options)
    assert report.observe_failures == 3 and stand.begins == []
    assert controller.last is not None and controller.last.source == "fallback"
    assert len(stand.sent) == 3 and "observe() raised" in stand.said[0]


@pytest.mark.parametrize("error", [OSError, CancelledError, Panic])
def test_an_actuator_that_fails_is_tried_again(error: type[BaseException]) -> None:
    stand = Stand(1.0)
    sent: list[Any] = []

    def send(action: Any) -> None:
        sent.append(action)
        if len(sent) < 3:
            raise error("no bus")

    report = run_loop(simulated(stand.policy), lambda: STATE, send, steps=4, **stand.options)
    assert (report.send_failures, len(sent), report.steps) == (2, 4, 4)
    assert stand.said == [f"control loop: send() raised {error.__name__}: no bus"]


@pytest.mark.parametrize("error", [OSError, CancelledError, Panic])
def test_a_warning_that_cannot_be_written_does_not_stop_the_loop(
    error: type[BaseException],
) -> None:
    def full(text: str) -> None:
        raise error("no space left on device")

    assert Stand(160.0, warn=full).run(5).warn_failures == 1
    assert Stand(1.0).run(5).warn_failures == 0


def test_capture_times_are_passed_on() -> None:
    stand = Stand(1.0)
    seen: list[Any] = []
    controller = simulated(stand.policy)
    inner = controller.act
    controller.act = lambda *given: seen.append(given) or inner(*given)  # type: ignore[method-assign]
    run_loop(controller, lambda: Observed(STATE, {"speed": 1}), print, steps=1, **stand.options)
    assert seen == [(STATE, {"speed": 1})]


def test_it_ends_when_told() -> None:
    stand = Stand(1.0)
    assert stand.run(0).steps == 0
    report = run_loop(
        simulated(stand.policy), lambda: STATE, stand.sent.append,
        stop=lambda: len(stand.sent) == 7, **stand.options,
    )  # fmt: skip
    assert report.steps == 7

    def interrupted(action: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_loop(simulated(stand.policy), lambda: STATE, interrupted, **stand.options)


def test_skipped_cycles_age_the_plan() -> None:
    chunk = np.arange(1, 9, dtype=np.float32)[:, None] * np.float32([0.02, 0.0])
    timer = FakeTimer(look=1_000)
    slow = iter([0.0, 0.0, 250.0, 250.0])

    def plan(state: Any, previous: Any) -> Any:
        timer.now += round(next(slow) * MS)
        return answer(chunk[0], chunk=chunk)

    controller = Controller(
        FakePolicy(plan), PERIOD, clock=timer, timer=timer.now_ns, max_chunk_age=4
    )
    sent: list[Any] = []
    run_loop(controller, lambda: STATE, sent.append, steps=4, timer=timer, warn=print)
    # 0.1 s after the chunk row 1 is due; the next cycle that is kept is 0.3 s later: row 4
    assert [action[0] for action in sent] == pytest.approx([0.02, 0.02, 0.04, 0.10])


def test_a_simulators_clock_is_not_for_real_time() -> None:
    with pytest.raises(UsageError, match="goes by a simulator's clock"):
        run_loop(simulated(constant(0, 0)), print, print, steps=1)


def test_in_real_time() -> None:
    sent: list[Any] = []
    controller = Controller(constant(0.01, 0.01), 0.01, math.inf)
    began = time.monotonic()
    report = run_loop(controller, lambda: STATE, sent.append, steps=5, warn=print)
    assert time.monotonic() - began >= 0.04 and report.steps == len(sent) == 5
    assert sent[-1].tolist() == pytest.approx([0.01, 0.01])


def test_arguments() -> None:
    controller = Controller(constant(0, 0), PERIOD)
    for given in ((5, print, print), (controller, None, print), (controller, print, 3)):
        with pytest.raises(SafetyError, match="must be"):
            run_loop(*given, steps=1)  # type: ignore[arg-type]
    with pytest.raises(SafetyError, match="stop must be"):
        run_loop(controller, print, print, stop=5)  # type: ignore[arg-type]
    with pytest.raises(SafetyError, match="warn_every must be"):
        run_loop(controller, print, print, warn_every=0.0, steps=1)
    graces, steps = [{"grace": g} for g in (1.5, math.nan, "x")], [{"steps": n} for n in ("3", 2.5)]
    for wrong in (*graces, *steps, {"timer": 3}, {"warn": 3}):
        with pytest.raises(SafetyError, match=next(iter(wrong))):
            run_loop(controller, print, print, **{"steps": 1, **wrong})  # type: ignore[arg-type]


def test_throttle_says_the_first_at_once() -> None:
    timer, said = SimpleNamespace(now=0), list[str]()
    clock: Any = SimpleNamespace(now_ns=lambda: timer.now)
    throttle = Throttle(said.append, 10, clock)
    for timer.now in (0, 1, 9, 10, 11, 30):
        throttle(f"at {timer.now}")
    assert said == ["at 0", "at 10 (2 more warnings since the last)",
                    "at 30 (1 more warnings since the last)"]  # fmt: skip
