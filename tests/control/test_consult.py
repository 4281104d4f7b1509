"""Asking a policy that may hang: resets, changes of task, closing, late failures and votes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.control.faults import Hostile
from tests.control.stalls import CHUNK, Rows, Stalling, bench, idle, mechanism, seen, stalled
from tests.control.support import STATE, UNFIT, FakePolicy, answer
from wmrt.control import Channel

__all__ = ["mechanism", "stalled"]


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
