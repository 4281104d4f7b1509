"""The watchdog: the loop goes on at its deadline, whatever the policy's thread does."""

from __future__ import annotations

import contextlib
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

from tests.control.faults import Hostile, Weather
from tests.control.stalls import Stalling, bench, idle, stalled, until
from tests.control.support import STATE, UNFIT, Bench, FakePolicy, answer, constant
from tests.safety.support import PERIOD
from wmrt.control import Channel, Controller, StepClock, TimedController
from wmrt.control.consult import Consultant
from wmrt.control.watchdog import Timed, Watchdog
from wmrt.core.clock import ManualClock
from wmrt.core.errors import SafetyError
from wmrt.safety import State

__all__ = ["stalled"]
#: Row n is what is planned for n steps later.
CHUNK = np.arange(1, 9, dtype=np.float32)[:, None] * np.float32([0.05, 0.0])


@pytest.fixture(params=["thread", "timer"], autouse=True)
def mechanism(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test here is run with both: who decides a step differs, and nothing else."""
    if request.param == "timer":
        for module in ("tests.control.support", __name__):
            monkeypatch.setattr(f"{module}.Controller", TimedController)
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


def test_reset_while_it_hangs(stalled: Stalling) -> None:
    rows = Rows()
    made = bench(stalled, recorder=rows)
    stalled.stall()
    made.act(seen(1))
    made.act(seen(2))
    made.controller.reset([0.5, 0.0])  # returns
    made.watch.restart((0.5, 0.0))
    assert rows.commands == [("reset", {"measured": [0.5, 0.0], "heal": True, "dropped": 2})]
    made.act(seen(3))
    assert stalled.resets == 0  # never while it works
    stalled.respond = lambda state, previous: answer([0.9, 0.9])
    stalled.go()
    idle(made)
    assert stalled.log == [1.0, "reset", 3.0]  # what was in the slot belonged to the last episode
    assert made.act(seen(4)).source == "blocked"


def test_reset_when_it_is_idle_is_done_at_once_and_may_raise() -> None:
    made = bench(Stalling(), deadline=60.0)
    made.act()
    made.controller.reset()
    assert made.policy.resets == 1

    def fails() -> None:
        raise OSError("no memory")

    made.policy.reset = fails
    with pytest.raises(OSError):
        made.controller.reset()
    outcome = made.act()
    assert outcome.source == "fallback" and made.last_event().kind == "reset: OSError"
    assert len(made.policy.log) == 2  # a policy that was not reset is not asked
    del made.policy.reset
    made.act()
    assert made.policy.log[-2:] == ["reset", 21.5]


def test_a_late_reset_that_fails_is_tried_again(stalled: Stalling) -> None:
    made = bench(stalled)
    stalled.stall()
    made.act()
    tries: list[int] = []

    def fails() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError

    stalled.reset = fails  # type: ignore[method-assign]
    made.controller.reset()
    stalled.go()
    idle(made)
    assert [made.act().source for _ in range(3)] == ["fallback", "fallback", "policy"]
    assert len(tries) == 3 and made.causes().count("range") == 2


def test_a_change_of_task_while_it_hangs(stalled: Stalling) -> None:
    stalled.respond = lambda state, previous: answer(CHUNK[0], chunk=CHUNK)
    rows = Rows()
    made = bench(stalled, recorder=rows)
    made.act(seen(1))
    stalled.stall()
    assert made.act(seen(2)).source == "planned"
    made.act(seen(3))
    made.controller.change_task("dock")
    assert rows.commands == [("change_task", {"task": "dock", "dropped": 3})]
    assert made.act(UNFIT).source == "fallback"
    stalled.go()
    idle(made)
    stalled.stall()
    assert made.act(seen(5)).source == "fallback"  # the late answer left no plan behind
    assert stalled.log == [1.0, 2.0, 5.0]
    stalled.go()


def test_close_while_it_hangs(stalled: Stalling) -> None:
    made = bench(stalled)
    stalled.stall()
    made.act(seen(1))
    made.act(seen(2))
    thread = made.controller._consultant._worker._thread  # type: ignore[attr-defined]
    made.controller.close()
    assert made.acts(3).source == "fallback" and not made.controller.last.late  # type: ignore[union-attr]
    assert thread.is_alive() and thread.daemon
    stalled.go()
    thread.join(10.0)
    assert not thread.is_alive() and stalled.log == [1.0]


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


def test_a_late_failure_is_noted(stalled: Stalling) -> None:
    def fails(state: Any, previous: Any) -> Any:
        raise ValueError

    made = bench(stalled)
    stalled.respond = fails
    stalled.stall()
    made.act()
    stalled.go()
    idle(made)
    stalled.respond = lambda state, previous: answer(previous)
    assert made.act().source == "policy"
    event = made.last_event()
    assert (event.cause.value, event.field, event.kind) == ("note", "policy", "late ValueError")
    assert made.controller.stats()["late_failures"] == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("late", [False, True])
def test_a_request_to_stop_reaches_the_loop(
    stalled: Stalling, error: type[BaseException], late: bool
) -> None:
    def stops(state: Any, previous: Any) -> Any:
        raise error

    made = bench(stalled)
    stalled.respond = stops
    if late:
        stalled.stall()
        made.act()
        stalled.go()
        idle(made)
    with pytest.raises(error):
        made.controller.act(STATE)
    stalled.respond = lambda state, previous: answer(previous)
    idle(made)
    while made.controller._consultant._worker.take():  # type: ignore[attr-defined]
        pass
    assert made.act().source == "policy"


def test_slow_channels_make_a_step_late_as_well(stalled: Stalling) -> None:
    def slow(state: Any, previous: Any) -> Any:
        stalled.stall()
        return stalled._answer(state, previous).action

    rows = Rows()
    channels = [Channel("slow", slow), Channel("hold", lambda s, p: p)]
    made = bench(stalled, channels=channels, recorder=rows)
    assert made.act().source == "fallback"
    assert rows.steps[0][1].channels == ("late", "late")
    stalled.go()


def test_a_vote_that_came_too_late_is_counted_against_its_channel(stalled: Stalling) -> None:
    def slow(state: Any, previous: Any) -> Any:
        if len(stalled.seen) == 1:
            stalled.stall()
            stalled._answer(state, previous)
            made.timer.advance(0.3)
        return previous

    hold = FakePolicy(lambda state, previous: answer(previous))
    made = bench(stalled, channels=[Channel("slow", slow), Channel.from_policy("hold", hold)])
    assert made.act().late
    stalled.go()
    idle(made)
    assert made.act().source == "policy"
    told = made.controller.stats()["channels"]
    assert [told[name]["late"] for name in ("slow", "hold")] == [1, 1]
    assert [told[name]["votes"] for name in ("slow", "hold")] == [1, 1]
    assert len(hold.seen) == 2  # no gap


def test_what_the_policy_reads_does_not_change_under_it(stalled: Stalling) -> None:
    read: list[Any] = []
    stalled.respond = lambda state, previous: read.append(dict(state)) or answer(previous)
    made = bench(stalled)
    pose, array, gap = [1.0, -2.0, 0.5], np.array([1.0, -2.0, 0.5]), np.array(40.0)
    for given in (pose, array):
        stalled.stall()
        made.act(STATE | {"pose": given, "gap": gap})
        given[0], gap[...] = 9.0, 3.0
        stalled.go()
        idle(made)
        assert list(read[-1]["pose"]) == [1.0, -2.0, 0.5] and float(read[-1]["gap"]) == 40.0
        pose[0], gap[...] = 1.0, 40.0
    made.act(STATE | {"gap": Hostile(), "pose": (1.0, 2.0, 3.0)})
    assert read[-1]["gap"] is None


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
