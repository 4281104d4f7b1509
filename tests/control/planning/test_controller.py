"""A controller that plans: behind the same breakers, under the same deadline."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

from tests.control.planning.toys import SCHEMA, SLOW_FORCE, Cart, limits
from tests.control.support import Bench, FakeTimer
from wmrt.control import Controller, StepClock
from wmrt.control.planning import MPPI, Planner
from wmrt.core.errors import SafetyError, UnsupportedError
from wmrt.safety import Breakers

FAR = {"position": 1.5, "speed": 0.0}


class Slow(Cart):
    """Takes 0.1 ms an imagined step on the timer it is given, 0.5 s more when it is ``stuck``."""

    def __init__(self, chunk: Any = None, actions: Any = SLOW_FORCE) -> None:
        super().__init__(chunk, actions)
        self.timer = FakeTimer()
        self.stuck = False

    def fork(self) -> Slow:
        twin: Any = super().fork()
        twin.timer = self.timer
        return twin  # type: ignore[no-any-return]

    def imagine(self, plans: Any) -> Any:
        self.timer.advance(1e-4 * plans.shape[0] * plans.shape[1] + 0.5 * self.stuck)
        return super().imagine(plans)


def bench(cart: Slow, **options: Any) -> Bench:
    options.setdefault("planner", MPPI(budget=160, margin=0.0))
    return Bench(cart, timer=cart.timer, **options)


def test_a_plan_is_sent_where_the_policy_alone_would_do_nothing() -> None:
    plain, planned = Bench(Cart(actions=SLOW_FORCE)), bench(Slow())
    for _ in range(4):
        assert plain.act(FAR).action == (0.0,)
        outcome = planned.act(FAR)
    assert outcome.source == "policy" and not outcome.tripped and outcome.action[0] < -0.5
    policy = planned.controller.model
    assert isinstance(policy, Planner) and policy.stats()["imagined_steps"] == 4 * 160
    assert policy.stats()["taken"]["plan"] == 4


def test_planning_is_off_unless_asked_for() -> None:
    cart = Cart()
    assert Controller(cart).model is cart
    assert not cart.imagined and not cart.forks


def test_a_budget_that_does_not_fit_the_controller_s_deadline_is_refused() -> None:
    cart = Slow()
    with pytest.raises(UnsupportedError, match=r"takes 96\.0 ms .* 100 ms allows 80\.0"):
        bench(cart, planner=MPPI(budget=960))
    bench(cart, planner=MPPI(budget=800))
    bench(cart, planner=MPPI(budget=960), deadline=0.2)
    bench(cart, planner=MPPI(budget=96_000), deadline=math.inf)


def test_something_that_does_not_plan_is_refused() -> None:
    with pytest.raises(SafetyError, match=r"planner must be an object with around\(\)"):
        Controller(Cart(), planner=400)  # type: ignore[arg-type]


def test_a_planner_goes_by_the_limits_of_the_breakers_it_is_behind() -> None:
    cart = Slow()
    data = limits(SLOW_FORCE).to_json()
    data["dims"][0].update(low=-0.4, high=0.4)  # of 4 N
    run = bench(cart, breakers=Breakers(type(limits()).from_json(data)))
    for _ in range(10):
        outcome = run.act(FAR)
        assert -0.1 <= outcome.action[0] and not outcome.tripped
    assert outcome.action[0] < -0.08 and not set(run.causes()) - {"state"}


def test_a_plan_that_comes_too_late_gives_way_to_the_one_before() -> None:
    cart = Slow()
    run = bench(cart)
    first = run.act(FAR)
    planned = run.controller.model.last  # type: ignore[attr-defined]
    chunk = _first_chunk()
    assert planned.taken == "plan" and first.action == (float(chunk[0, 0]),)
    cart.stuck = True
    late = [run.act(FAR) for _ in range(4)]
    assert all(outcome.late for outcome in late)
    assert [o.source for o in late] == ["planned", "planned", "planned", "fallback"]
    assert [o.action[0] for o in late[:3]] == chunk[1:4, 0].tolist()
    cart.stuck = False
    assert run.act(FAR).source == "policy"


def _first_chunk() -> Any:
    """What such a planner plans first."""
    twin = MPPI(budget=160, margin=0.0).around(
        Cart(actions=SLOW_FORCE), limits(SLOW_FORCE), math.inf
    )
    return twin.step(FAR, SCHEMA.neutral).chunk


def test_an_episode_can_be_run_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tape = [{"position": float(p), "speed": float(v)} for p, v in rng.uniform(-2, 2, (20, 2))]
    run = bench(Slow(), planner=MPPI(budget=160, margin=0.0, seed=seed))
    episodes = []
    for _ in range(2):
        run.controller.reset()
        run.watch.restart(run.controller.breakers.reference)
        episodes.append([run.act(state).action for state in tape])
    assert episodes[0] == episodes[1]
    assert len(set(episodes[0])) > 10


def test_a_failed_imagination_is_recorded_and_the_policy_drives() -> None:
    cart = Slow(np.full((8, 1), 0.05))
    run = bench(cart)
    cart.spoil = lambda plans, reward: np.full_like(reward, math.nan)
    outcome = run.act(FAR)
    assert outcome.source == "policy" and outcome.action == (float(np.float32(0.05)),)
    event = run.last_event()
    assert (event.cause.value, event.field, event.kind) == ("note", "imagined return", "nonfinite")
    assert (event.value, event.limit) == (19, "took: nonfinite")


def test_an_imagination_that_raises_is_a_failure_of_the_policy() -> None:
    cart = Slow()
    run = bench(cart)

    def fails(plans: Any, reward: Any) -> Any:
        raise ArithmeticError("no")

    cart.spoil = fails
    assert run.act(FAR).source == "fallback"
    assert "ArithmeticError" in {e.kind for e in run.controller.breakers.events.snapshot()}


def test_bad_input_asks_neither_the_policy_nor_its_imagination() -> None:
    cart = Slow()
    run = bench(cart)
    before = cart.imagined
    run.act("no state")
    assert cart.imagined == before and not cart.seen


def test_an_imagination_that_hangs_does_not_hold_the_loop() -> None:
    """In real time, with the watchdog: the plan before goes on, and what hangs is waited for."""
    cart, release = Cart(actions=SLOW_FORCE), threading.Event()
    planner = MPPI(budget=160, margin=0.0)
    controller = Controller(cart, 0.5, watchdog=True, clock=StepClock(0.5), planner=planner)
    try:
        first = controller.act(FAR)
        assert controller.last is not None and controller.last.source == "policy"

        def hang(plans: Any, reward: Any) -> Any:
            release.wait(60.0)
            return reward

        cart.spoil = hang
        controller.act(FAR)
        late = controller.last
        assert late.late and late.source == "planned" and not release.is_set()
        assert late.action[0] != first[0]
    finally:
        release.set()
        controller.close()
