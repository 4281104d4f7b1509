"""The watchdog: the loop goes on at its deadline, whatever the policy's thread does."""

from __future__ import annotations

import gc
import math
import random
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from tests.control.stalls import CHUNK, Rows, Stalling, bench, idle, mechanism, seen, stalled, until
from tests.control.support import STATE, UNFIT, Bench, FakePolicy, answer, constant
from tests.safety.support import PERIOD
from wmrt.control import Controller, StepClock
from wmrt.control.consult import Consultant
from wmrt.control.watchdog import Timed, Watchdog
from wmrt.core.clock import ManualClock
from wmrt.core.errors import SafetyError
from wmrt.safety import State

__all__ = ["mechanism", "stalled"]


def test_it_is_on_where_a_deadline_is_to_be_kept_in_real_time(mechanism: str) -> None:
    def on(**options: Any) -> bool:
        asked: Any = Controller(constant(0, 0), PERIOD, **options)._consultant
        if mechanism == "thread":
            assert type(asked) in (Watchdog, Consultant)
            return type(asked) is Watchdog
        assert type(asked) is Timed
        return asked.alarm is not None

    assert on()
    assert not on(clock=StepClock(PERIOD)) and not on(clock=ManualClock())
    assert not on(deadline=math.inf) and not on(watchdog=False)
    assert on(watchdog=True, clock=StepClock(PERIOD))
    with pytest.raises(SafetyError, match="watchdog=True needs a deadline"):
        on(watchdog=True, deadline=math.inf)


def test_the_same_actions_as_without(seed: int) -> None:
    draw = random.Random(seed)
    moves = [[draw.uniform(-0.1, 0.1), draw.uniform(-0.1, 0.1)] for _ in range(200)]
    sent = []
    for watchdog in (False, True):
        step = iter(moves)
        policy = FakePolicy(lambda s, p, step=step: answer(p + np.float32(next(step))))  # type: ignore[misc]
        made = Bench(policy, watchdog=watchdog, deadline=60.0)
        sent.append([made.act().action for _ in moves])
        assert made.controller.stats()["late_answers"] == 0
    assert sent[0] == sent[1]


def test_a_policy_that_never_returns_does_not_hold_the_loop() -> None:
    forever = threading.Event()
    policy = FakePolicy(lambda state, previous: forever.wait())
    controller = Controller(policy, PERIOD, 0.02)
    began = time.monotonic()
    for _ in range(5):
        assert controller.act(STATE).tolist() == [0.0, 0.0]
        assert controller.last is not None and controller.last.late
    took = time.monotonic() - began
    assert 0.1 <= took < 5.0  # at its five deadlines, not at once, not never
    assert controller.last.policy_ns is None and controller.last.act_ns >= 20_000_000
    controller.reset()
    controller.close()
    controller.act(STATE)
    assert time.monotonic() - began < took + 5.0
    forever.set()


def test_the_plan_and_then_the_fallback_while_it_hangs(stalled: Stalling) -> None:
    stalled.respond = lambda state, previous: answer(CHUNK[0], chunk=CHUNK)
    made = bench(stalled, max_chunk_age=2)
    assert made.act().action == pytest.approx((0.05, 0.0))
    stalled.stall()
    outcomes = [made.act() for _ in range(3)]
    assert [o.source for o in outcomes] == ["planned", "planned", "fallback"]
    assert [o.late for o in outcomes] == [True] * 3
    assert outcomes[1].action == pytest.approx((0.15, 0.0))
    assert made.causes() == ["deadline", "deadline", "deadline", "starved"]
    stalled.go()
    idle(made)
    outcome = made.act()
    assert (outcome.source, outcome.late) == ("policy", False)


def test_a_late_answer_advances_the_memory_and_is_not_used(stalled: Stalling) -> None:
    stalled.respond = lambda state, previous: answer([0.01 * state["speed"], 0.0])
    rows = Rows()
    made = bench(stalled, recorder=rows)
    made.act(seen(1))
    stalled.stall()
    made.act(seen(2))
    stalled.go()
    idle(made)
    outcome = made.act(seen(3))
    assert stalled.log == [1.0, 2.0, 3.0]  # no gap
    assert outcome.action == pytest.approx((0.03, 0.0))
    assert [i.finished for _, i in rows.steps] == [(), (), (2,)]
    assert [(i.asked, i.answered, i.late) for _, i in rows.steps] == [
        (True, True, False), (True, False, True), (True, True, False),
    ]  # fmt: skip
    stats = made.controller.stats()
    assert (stats["late_answers"], stats["late_failures"], stats["deadline_misses"]) == (1, 0, 1)
    assert stats["policy_ms"]["n"] == 3  # the slow one too


def test_only_the_newest_observation_waits(stalled: Stalling) -> None:
    rows = Rows()
    made = bench(stalled, recorder=rows)
    stalled.stall()
    for n in range(1, 6):
        made.act(seen(n))
    stalled.go()
    idle(made)
    made.act(seen(6))
    assert stalled.log == [1.0, 5.0, 6.0]
    assert [i.skipped for _, i in rows.steps] == [(), (), (2,), (3,), (4,), ()]
    assert rows.steps[-1][1].finished == (1, 5)
    assert made.controller.stats()["skipped_observations"] == 3


def test_unfit_input_does_not_take_the_slot(stalled: Stalling) -> None:
    made = bench(stalled)
    stalled.stall()
    made.act(seen(1))
    made.act(seen(2))
    assert not made.act(UNFIT).late
    stalled.go()
    idle(made)
    assert stalled.log == [1.0, 2.0]


def test_a_stop_does_not_wait_for_the_deadline() -> None:
    policy = Stalling()
    rows = Rows()
    controller = Controller(policy, PERIOD, 3600.0, watchdog=True, recorder=rows)
    assert controller.act(STATE).tolist() == [0.0, 0.0]
    policy.stall()
    sent: list[Any] = []
    loop = threading.Thread(target=lambda: sent.append(controller.act(STATE)))
    loop.start()
    assert policy.hung.wait(10.0)
    controller.estop()
    loop.join(10.0)
    assert not loop.is_alive() and sent[0].tolist() == [0.0, 0.0]
    outcome, inputs = rows.steps[-1]
    assert (outcome.after, outcome.source, outcome.late) == (State.LATCHED, "fallback", False)
    assert (inputs.asked, inputs.answered, inputs.estop) == (True, False, "decide")
    policy.go()


def test_a_stop_between_steps() -> None:
    made = bench(Stalling(), deadline=60.0)
    made.act()
    made.controller.estop()
    assert made.act().after is State.LATCHED
    made.controller.estop(False)
    made.controller.reset_latch("Ada")
    made.controller.engage("Ada")
    assert made.acts(25).after is State.CLOSED


def test_the_thread_ends_with_the_controller() -> None:
    controller = Controller(constant(0.0, 0.0), PERIOD, 60.0)
    assert controller._consultant._worker._thread is None  # type: ignore[attr-defined]
    controller.act(STATE)
    thread = controller._consultant._worker._thread  # type: ignore[attr-defined]
    assert thread.is_alive()
    del controller
    gc.collect()
    thread.join(10.0)
    assert not thread.is_alive()


LAST = """
import sys, threading, time
from tests.control.support import STATE, FakePolicy
from wmrt.control import Controller

begun = threading.Event()

def slow(state, previous):
    begun.set()
    {slow}
    print("done", flush=True)

controller = Controller(FakePolicy(slow), 0.1, 0.01)
controller.act(STATE)
begun.wait()
"""


@pytest.mark.parametrize(
    ("slow", "said"), [("time.sleep(0.3)", "done\n"), ("threading.Event().wait()", "")]
)
def test_the_process_ends_after_the_step_that_runs_or_without_it(slow: str, said: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LAST.format(slow=slow)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, said, "")


def test_in_real_time_it_is_late_when_the_policy_is() -> None:
    slow = iter([0.0, 0.2, 0.0, 0.2])
    policy = FakePolicy(lambda state, previous: (time.sleep(next(slow)), answer(previous))[1])
    controller = Controller(policy, PERIOD, 0.05)
    late = []
    for _ in range(4):
        controller.act(STATE)
        assert controller.last is not None
        late.append(controller.last.late)
        until(lambda: not controller._consultant._worker._busy)  # type: ignore[attr-defined]
    assert late[1] and late[3]  # and the others, if the machine was busy
    controller.act(STATE | {"speed": None})  # asks nobody
    assert controller.stats()["deadline_misses"] == sum(late)
