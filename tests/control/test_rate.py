"""Rates: a policy runs at the period it was trained at, or is resampled to a faster one."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.control.stalls import Stalling, idle, stalled
from tests.control.support import STATE, UNFIT, Bench, FakePolicy, answer
from tests.safety.support import DRIVING, PERIOD, Watch, limits
from wmrt.control import Channel, Controller
from wmrt.control.rate import training_period
from wmrt.control.vector import SharedStep
from wmrt.core.clock import ManualClock
from wmrt.core.errors import SafetyError
from wmrt.runtime import WorldModel

__all__ = ["stalled"]


class Trained(FakePolicy):
    """Says how it was trained; wants the next of ``goals``, or the last one again."""

    def __init__(self, period: Any, goals: Any = ((0.0, 0.0),)) -> None:
        self.period = period
        self.goals = list(goals)
        super().__init__(self.want)

    def want(self, state: Any, previous: Any) -> Any:
        return answer(self.goals.pop(0) if len(self.goals) > 1 else self.goals[0])


class Faster(Bench):
    """A controller at ``every`` times the rate of the policy."""

    def __init__(self, policy: Any, every: int, **options: Any) -> None:
        super().__init__(policy, deadline=math.inf)  # for what the parent sets up
        self.step = PERIOD / every
        self.clock = ManualClock()
        options.setdefault("deadline", math.inf)
        self.controller = Controller(
            policy, self.step, timer=self.timer, clock=self.clock, resample="linear", **options
        )
        self.watch = Watch(limits(policy.actions, period=self.step), (0.0, 0.0))

    def act(self, obs: Any = STATE, dt: float | None = None, **rest: Any) -> Any:
        return super().act(obs, self.step if dt is None else dt, **rest)


def test_where_the_training_period_comes_from() -> None:
    assert training_period(Trained(0.1)) == 0.1
    assert training_period(SimpleNamespace(provenance={"period": 0.05})) == 0.05
    assert training_period(SimpleNamespace(period=0.2, provenance={"period": 0.05})) == 0.2
    assert training_period(WorldModel.from_pretrained("highway", recipe="bf16")) == 0.1
    group: Any = SimpleNamespace(model=SimpleNamespace(provenance={"period": 0.05}), robots=1)
    assert training_period(SharedStep(group).policies[0]) == 0.05
    for unknown in (None, 0, -1, math.nan, math.inf, "0.1", True, [0.1]):
        assert training_period(Trained(unknown)) is None
    assert training_period(SimpleNamespace(provenance={})) is None


@pytest.mark.parametrize("period", [0.05, 0.2, 0.1001, 0.0999, 0.03])
def test_another_rate_is_an_error(period: float) -> None:
    with pytest.raises(SafetyError, match=r"trained at 0.1 s a step, period is .*; use period=0.1"):
        Controller(Trained(0.1), period)


@pytest.mark.parametrize("period", [0.2, 0.03, 0.06, 0.0999, 0.11])
def test_what_resampling_cannot_reach(period: float) -> None:
    with pytest.raises(SafetyError, match="or a whole fraction of it"):
        Controller(Trained(0.1), period, resample="linear")


def test_the_rate_it_was_trained_at() -> None:
    for period in (0.1, np.float64(0.1), 0.1 * (1 + 1e-9)):
        Controller(Trained(0.1), period)
    Controller(Trained(1 / 30), 0.0333333333, resample="linear")
    Controller(Trained(None), 0.05)  # it does not say
    with pytest.raises(SafetyError, match="does not say at what period it was trained"):
        Controller(Trained(None), 0.05, resample="linear")
    with pytest.raises(SafetyError, match="resample must be None or \"linear\", got 'hold'"):
        Controller(Trained(0.1), 0.05, resample="hold")  # type: ignore[arg-type]
    channels = [Channel("a", lambda s, p: p), Channel("b", lambda s, p: p)]
    with pytest.raises(SafetyError, match="channels vote on whole steps"):
        Controller(Trained(0.1), 0.05, resample="linear", channels=channels)


def test_it_is_asked_at_its_own_rate_and_reached_in_equal_parts() -> None:
    bench = Faster(Trained(0.1, [(0.4, -0.2), (0.0, 0.1)]), 4)
    sent = [bench.act() for _ in range(8)]
    assert len(bench.policy.seen) == 2
    assert [o.action for o in sent] == [
        pytest.approx(at, abs=1e-6)
        for at in [(0.1, -0.05), (0.2, -0.1), (0.3, -0.15), (0.4, -0.2),
                   (0.3, -0.125), (0.2, -0.05), (0.1, 0.025), (0.0, 0.1)]
    ]  # fmt: skip
    assert [o.policy_ns for o in sent] == [0, None, None, None] * 2
    assert {o.source for o in sent} == {"policy"} and bench.causes() == []
    assert bench.policy.seen[1][1].tolist() == pytest.approx([0.4, -0.2])  # what was sent


def test_full_speed_at_the_training_rate_trips_nothing(seed: int) -> None:
    """The most that one step of the policy may change is no rate fault when it is resampled."""
    draw = random.Random(seed)
    at, goals = np.zeros(2), []
    deltas = np.array([dim.max_delta(PERIOD) for dim in DRIVING.dims])
    for _ in range(200):
        at = np.clip(at + [draw.choice([up, -down]) for up, down in deltas], -1, 1)
        goals.append(tuple(at.tolist()))
    every = draw.choice([2, 3, 5, 10])
    bench = Faster(Trained(PERIOD, goals), every)
    for n in range(200 * every):
        outcome = bench.act()
        if n % every == every - 1:
            assert outcome.action == pytest.approx(goals[n // every], abs=1e-5)
    assert bench.controller.stats()["trips"] == dict.fromkeys(
        ("validity", "range", "rate", "consensus"), 0
    )


@pytest.mark.parametrize("wrong", [(math.nan, 0.0), (3.0, 0.0), (0.1,), "no"])
def test_what_is_out_of_range_is_judged_at_once_and_once(wrong: Any) -> None:
    bench = Faster(Trained(0.1, [(0.4, 0.0), wrong, (0.0, 0.0)]), 4)
    bench.acts(4)
    sources = [bench.act().source for _ in range(4)]
    assert sources == ["fallback"] * 4 and bench.causes() == ["range"]
    assert len(bench.policy.seen) == 2
    assert bench.act().source == "policy"


def test_a_prediction_out_of_range_is_followed_no_further() -> None:
    policy = Trained(0.1)
    policy.answer = lambda s, p: answer([0.4, 0.0], predicted={"gap": 1e4})
    bench = Faster(policy, 4)
    assert [bench.act().source for _ in range(4)] == ["fallback"] * 4
    assert bench.causes() == ["range"]


def test_unfit_input_in_between_asks_anew() -> None:
    bench = Faster(Trained(0.1, [(0.4, 0.0), (0.2, 0.0)]), 4)
    bench.acts(2)
    bench.act(UNFIT)
    bench.act()
    assert len(bench.policy.seen) == 2


@pytest.mark.parametrize("what", ["reset", "engage", "change_task"])
def test_a_new_start_drops_the_target(what: str) -> None:
    bench = Faster(Trained(0.1, [(0.4, 0.0), (0.0, 0.0)]), 4)
    bench.acts(2)
    {
        "reset": bench.controller.reset,
        "engage": lambda: bench.controller.engage("Ada"),
        "change_task": lambda: bench.controller.change_task("dock"),
    }[what]()
    bench.watch.restart(bench.controller.breakers.reference)
    bench.act()
    assert len(bench.policy.seen) == 2


def test_late_answers_and_the_plan_go_by_the_policys_steps(stalled: Stalling) -> None:
    chunk = np.arange(1, 9, dtype=np.float32)[:, None] * np.float32([0.1, 0.0])
    stalled.period = 0.1  # type: ignore[attr-defined]
    stalled.respond = lambda state, previous: answer(chunk[0], chunk=chunk)
    bench = Faster(stalled, 2, watchdog=True, deadline=0.04, max_chunk_age=2)
    bench.acts(2)
    stalled.stall()
    sent = [bench.act() for _ in range(6)]
    assert [o.source for o in sent] == ["planned"] * 4 + ["fallback"] * 2
    assert [o.action[0] for o in sent[:4]] == pytest.approx([0.15, 0.2, 0.25, 0.3])
    assert [o.late for o in sent] == [True, False] * 3
    bench.controller.reset()
    bench.controller.estop()
    stalled.go()
    idle_inner(bench)
    bench.controller.close()


def idle_inner(bench: Bench) -> None:
    outer: Any = bench.controller._consultant
    inner: Any = SimpleNamespace(controller=SimpleNamespace(_consultant=outer._inner))
    idle(inner)
