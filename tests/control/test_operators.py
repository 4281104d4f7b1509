"""The controller in an operator's hands: reset, engage, disengage, emergency stop."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.control.support import (
    STATE,
    Bench,
    FakePolicy,
    answer,
    constant,
    simulated,
)
from wmrt.core.errors import SafetyError
from wmrt.safety import State


def test_reset_starts_over() -> None:
    bench = Bench(constant(0.25, 0.25))
    bench.acts(3)
    bench.controller.reset()
    assert bench.policy.resets == 1
    assert bench.controller.breakers.reference == (0.0, 0.0)
    bench.controller.reset(measured=[0.5, -1.0])
    assert bench.controller.breakers.reference == (0.5, -1.0)
    with pytest.raises(SafetyError, match="needs 2 finite numbers"):
        bench.controller.reset(measured=[math.nan, 0.0])
    assert bench.policy.resets == 2


def test_disengage_engage_close() -> None:
    bench = Bench(constant(0.25, 0.25))
    bench.act()
    bench.controller.disengage()
    assert bench.act().source == "fallback"
    bench.controller.engage("Ada")
    assert bench.act().source == "policy"
    bench.controller.close()
    assert bench.acts(3).source == "fallback"
    with pytest.raises(SafetyError, match="this controller is closed"):
        bench.controller.engage("Ada")


def test_emergency_stop_to_driving_again() -> None:
    bench = Bench(constant(0.25, 0.25))
    bench.act()
    bench.controller.estop()
    outcome = bench.act()
    assert (outcome.source, outcome.after) == ("fallback", State.LATCHED)
    bench.controller.reset()
    bench.watch.restart((0.0, 0.0))
    assert bench.acts(10).after is State.LATCHED
    with pytest.raises(SafetyError, match="pressed"):
        bench.controller.reset_latch("Ada")
    bench.controller.estop(pressed=False)
    bench.controller.reset_latch("Ada")
    assert bench.acts(10).source == "fallback"
    bench.controller.engage("Ada")
    assert bench.acts(5).after is State.HALF_OPEN
    assert bench.acts(20).after is State.CLOSED
    assert bench.act().source == "policy"


def test_emergency_stop_needs_no_lock_and_acts_on_a_step_under_way() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(state: Any, previous: Any) -> Any:
        entered.set()
        assert leave.wait(10.0)
        return answer([0.25, 0.25])

    controller = simulated(FakePolicy(slow), deadline=math.inf)
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(controller.act(STATE)))
    thread.start()
    assert entered.wait(10.0)
    controller.estop()  # returns although the step holds the lock
    leave.set()
    thread.join(10.0)
    assert result[0].tolist() == [0.0, 0.0]
    assert controller.breakers.state is State.LATCHED


def test_operators_from_other_threads_while_it_runs() -> None:
    controller = simulated(FakePolicy(lambda s, p: answer(p + np.float32(0.01))))
    done = threading.Event()

    def operator() -> None:
        while not done.is_set():
            controller.disengage()
            controller.engage("Ada")
            controller.stats()
            time.sleep(0)

    thread = threading.Thread(target=operator)
    thread.start()
    last = np.zeros(2)
    for _ in range(500):
        action = controller.act(STATE).astype(np.float64)
        assert np.all(np.abs(action - last) <= (0.5, 0.6))
        last = action
    done.set()
    thread.join(10.0)
    assert controller.stats()["record_failures"] == 0


# Settings
