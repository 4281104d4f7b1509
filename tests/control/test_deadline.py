"""Deadlines: a late result is discarded, the last timely chunk goes on, then the fallback."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.control.support import UNFIT, Bench, FakePolicy, answer
from wmrt.control import Channel
from wmrt.core.errors import SafetyError
from wmrt.model.schema import StateSchema, instruction, numeric
from wmrt.safety import Cause, State

#: Row n of step t is 0.05 * (t + n): the plan of step t for step t + n.
ROWS = np.arange(8, dtype=np.float32)[:, None] * np.float32([0.05, 0.0])


class Planner(FakePolicy):
    """Plans a steady ramp; ``late`` says by how many seconds the coming steps are slow."""

    def __init__(self) -> None:
        super().__init__(self.plan)
        self.bench: Bench
        self.count = 0
        self.slow = 0.0
        self.rest: dict[str, Any] = {}

    def plan(self, state: Any, previous: Any) -> Any:
        self.count += 1
        self.bench.timer.advance(self.slow)
        chunk = ROWS + np.float32([0.05 * self.count, 0.0])
        return answer(**({"action": chunk[0] - 0.5 * (self.slow > 0), "chunk": chunk} | self.rest))


STEADY = {"action": [0.05, 0.0], "chunk": np.full((8, 2), [0.05, 0.0])}


def planner(**options: Any) -> tuple[Bench, Planner]:
    policy = Planner()
    policy.bench = Bench(policy, **options)
    return policy.bench, policy


def test_a_late_result_gives_way_to_the_plan_and_then_to_the_fallback() -> None:
    bench, policy = planner(max_chunk_age=3)
    assert bench.act().action[0] == pytest.approx(0.05)
    policy.slow = 0.11
    for n in (1, 2, 3):
        outcome = bench.act()
        assert (outcome.source, outcome.late) == ("planned", True)
        assert outcome.action[0] == pytest.approx(0.05 + 0.05 * n)
        assert outcome.act_ns >= 110_000_000
    outcome = bench.act()
    assert (outcome.source, outcome.late, outcome.after) == ("fallback", True, State.CLOSED)
    assert bench.causes()[-2:] == ["deadline", "starved"]
    policy.slow = 0.0
    outcome = bench.act()
    assert (outcome.source, outcome.late) == ("policy", False)
    stats = bench.controller.stats()
    assert (stats["deadline_misses"], stats["longest_miss_streak"], stats["starved"]) == (4, 4, 1)
    assert policy.count == 6  # the policy was asked every time: its memory has no gap


def test_a_late_chunk_is_discarded_too() -> None:
    bench, policy = planner(max_chunk_age=1)
    bench.act()
    policy.slow = 0.2
    assert bench.act().source == "planned"
    assert bench.act().source == "fallback"  # else the plan would never grow old


def test_exactly_the_deadline_is_in_time() -> None:
    bench, policy = planner(deadline=0.02)
    policy.slow = 0.02
    assert not bench.act().late
    policy.slow = 0.020001
    assert bench.act().late
    events = bench.controller.breakers.events.snapshot()
    assert [e.limit for e in events if e.cause is Cause.DEADLINE] == [20_000_000]


def test_no_deadline() -> None:
    bench, policy = planner(deadline=math.inf)
    policy.slow = 1e6
    assert not bench.act().late


def test_the_first_step_late_has_no_plan() -> None:
    bench, policy = planner()
    policy.slow = 1.0
    assert bench.act().source == "fallback"


@pytest.mark.parametrize(
    "chunk",
    [
        None,
        "text",
        [[0.1], [0.1, 0.2]],
        np.zeros((8, 3)),
        np.zeros(8),
        np.array([["a", "b"]]),
        object(),
    ],
)
def test_without_a_usable_chunk_the_action_counts_and_there_is_no_plan(chunk: Any) -> None:
    bench, policy = planner()
    policy.rest = {"chunk": chunk}
    assert bench.act().source == "policy"
    assert bench.causes() == ([] if chunk is None else ["note"])
    policy.slow = 1.0
    assert bench.act().source == "fallback"


def test_a_short_chunk_ends() -> None:
    bench, policy = planner()
    policy.rest = {"chunk": ROWS[:2]}
    bench.act()
    policy.slow = 1.0
    assert [bench.act().source for _ in range(2)] == ["planned", "fallback"]


def test_a_plan_is_kept_through_bad_input_but_ages() -> None:
    bench, policy = planner(max_chunk_age=2)
    policy.rest = STEADY
    bench.act()
    policy.slow = 1.0
    assert bench.act(UNFIT).source == "fallback"  # age 1; the policy is not asked
    policy.slow = 0.0
    bench.acts(5)
    policy.slow = 1.0
    assert [bench.act().source for _ in range(3)] == ["planned", "planned", "fallback"]


def test_the_plan_of_an_untrusted_answer_is_dropped() -> None:
    bench, policy = planner()
    bench.act()
    policy.rest = {"action": [math.nan, 0.0]}
    assert bench.act().source == "fallback"
    policy.slow = 1.0
    assert bench.act().source == "fallback"


@pytest.mark.parametrize("what", ["reset", "engage"])
def test_a_new_start_drops_the_plan(what: str) -> None:
    bench, policy = planner()
    bench.acts(2)
    if what == "reset":
        bench.controller.reset()
        bench.watch.restart((0.0, 0.0))
    else:
        bench.controller.engage("Ada")
    policy.slow = 1.0
    assert bench.act().source == "fallback"


def test_planned_actions_pass_the_breakers() -> None:
    bench, policy = planner()
    policy.rest = {"chunk": np.float32([[0.05, 0.0], [0.9, 0.0], [1.5, 0.0], [0.2, 0.0]])}
    bench.act()
    policy.slow = 1.0
    assert bench.act().source == "blocked"
    assert bench.act().source == "fallback"
    assert bench.causes().count("range") == 1


def test_a_late_failure_is_a_failure() -> None:
    bench, policy = planner()
    bench.act()

    def fails(state: Any, previous: Any) -> Any:
        bench.timer.advance(1.0)
        raise ValueError

    policy.answer = fails
    outcome = bench.act()
    assert (outcome.source, outcome.late) == ("fallback", True)
    assert outcome.policy_ns == 1_000_000_000
    assert bench.causes() == ["deadline", "range"]


def test_slow_channels_make_a_step_late_and_do_not_vote() -> None:
    bench: Bench
    policy = Planner()

    def slow(state: Any, previous: Any) -> Any:
        bench.timer.advance(0.2)
        return (0.9, 0.9)

    bench = Bench(policy, channels=[Channel("slow", slow), Channel("hold", lambda s, p: p)])
    policy.bench = bench
    outcome = bench.act()
    assert (outcome.late, outcome.source, outcome.after) == (True, "fallback", State.CLOSED)


def test_late_steps_are_not_clean() -> None:
    bench, policy = planner()
    policy.rest = STEADY
    bench.act(UNFIT)
    bench.acts(5)
    bench.acts(19)
    policy.slow = 1.0
    assert bench.act().after is State.HALF_OPEN
    policy.slow = 0.0
    assert bench.acts(19).after is State.HALF_OPEN
    assert bench.act().after is State.CLOSED


TOLD = StateSchema({"speed": numeric("m/s", 0.0, 40.0), "text": instruction()}, neutral=(0.0, 0.0))


@pytest.mark.parametrize("other", ["park", None, 7, np.str_("drive")])
def test_nothing_planned_under_another_instruction_is_sent(other: Any) -> None:
    policy = Planner()
    policy.schema = TOLD
    policy.rest = STEADY
    policy.bench = bench = Bench(policy)
    state = {"speed": 1.0, "text": "drive"}
    bench.acts(2, state)
    policy.slow = 1.0
    assert bench.act(state).source == "planned"
    assert bench.act(state | {"text": other}).source == "fallback"
    assert bench.act(state).source == "fallback", "nor does it come back"


def test_nothing_planned_under_another_task_is_sent() -> None:
    bench, policy = planner()
    bench.acts(2)
    policy.slow = 1.0
    assert bench.act().source == "planned"
    bench.controller.change_task("dock")
    assert bench.act().source == "fallback"
    for wrong in ("", None, 3):
        with pytest.raises(SafetyError, match="task must be a string that is not empty"):
            bench.controller.change_task(wrong)  # type: ignore[arg-type]
