"""Thousands of steps with a policy that hangs now and then, in any weather."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np

from tests.control.faults import Weather
from tests.control.stalls import Rows, Stalling, bench, idle, mechanism, seen, stalled
from tests.control.support import UNFIT, answer
from tests.safety.support import PERIOD
from wmrt.core.errors import SafetyError

__all__ = ["mechanism", "stalled"]


def test_random_stalls(stalled: Stalling, seed: int) -> None:
    """Ten thousand steps with stalls, resets, changes of task and stops in between: what leaves is
    safe, and the record says exactly what the policy was asked, in order."""
    draw = random.Random(seed)
    stalled.respond = lambda state, previous: answer(
        previous + np.float32([draw.uniform(-0.1, 0.1), 0.0]), chunk=np.tile(previous, (8, 1))
    )
    rows = Rows()
    made = bench(stalled, recorder=rows)
    for step in range(1, 10_001):
        if draw.random() < 0.03 and not stalled.hung.is_set():
            stalled.stall()
        elif stalled.hung.is_set() and draw.random() < 0.3:
            stalled.go()
            idle(made)
        if draw.random() < 0.01:
            made.controller.reset()
            made.watch.restart((0.0, 0.0))
        elif draw.random() < 0.01:
            made.controller.change_task("another")
        made.act(UNFIT if draw.random() < 0.02 else seen(step % 40))
    stalled.go()
    idle(made)
    made.act(seen(10_001 % 40))
    check(rows, stalled)
    stats = made.controller.stats()
    assert stats["skipped_observations"] > 100 and stats["late_answers"] > 100
    assert stats["record_failures"] == 0 and "internal" not in stats["causes"]


def check(rows: Rows, policy: Stalling) -> None:
    """The policy saw every step that was asked, but for those skipped and dropped, and resets where
    they belong; several in a row may have been one."""
    gone = {n for outcome, inputs in rows.steps for n in inputs.skipped}
    gone |= {arguments.get("dropped") for name, arguments in rows.commands}
    expected: list[Any] = []
    for first, second in rows.all:
        if first == "reset" and expected[-1:] != ["reset"]:
            expected.append("reset")
        elif not isinstance(first, str) and second.asked and first.step not in gone:
            expected.append(float(first.step % 40))
    assert [x for n, x in enumerate(policy.log) if x != "reset" or policy.log[n - 1] != x] == (
        expected
    )
    for outcome, inputs in rows.steps:
        assert not (inputs.answered and outcome.step in gone)
        assert list(inputs.finished) == sorted(inputs.finished)
        assert all(n < outcome.step and n not in gone for n in inputs.finished)


def test_stalls_in_any_weather(stalled: Stalling, seed: int) -> None:
    """The contract holds with faulty input, answers, clocks, fallbacks and operators as well."""
    weather = Weather(seed)
    stalled.respond = weather.policy
    made = bench(stalled, timer=weather.timer, fallback=weather.fallback, max_age=0.5)
    controller = made.controller
    for _ in range(5_000):
        weather.tick()
        if not stalled.hung.is_set() and weather.fault(0.1):
            stalled.stall()
        elif stalled.hung.is_set() and weather.rng.random() < 0.3:
            stalled.go()
            idle(made)
        if weather.fault(0.01):
            controller.estop(weather.rng.random() < 0.5)
        if weather.fault(0.01):
            controller.reset()
            made.watch.restart(controller.breakers.reference)
        if not weather.stormy and not controller.breakers.engaged:
            controller.estop(False)
            for operation in (controller.reset_latch, controller.engage):
                with contextlib.suppress(SafetyError):
                    operation("Ada")
        now = made.clock.now_ns()
        captured = weather.rng.choice([None, now, {"speed": now, "gap": now - 10**8}, "now"])
        observation = weather.observation()
        made.act(observation, weather.seconds(PERIOD), captured_ns=captured)
    stalled.go()
    stats = controller.stats()
    assert all(stats["steps_in"][state] for state in ("closed", "open", "half_open", "latched"))
    assert stats["skipped_observations"] and stats["late_answers"] and stats["late_failures"]
    assert stats["record_failures"] == 0 and "internal" not in stats["causes"]
