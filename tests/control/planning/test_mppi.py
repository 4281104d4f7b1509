"""Settings, and planning that does not fit its deadline."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest

from tests.control.planning.toys import Cart, limits
from tests.control.support import FakePolicy, FakeTimer, answer
from wmrt.control.planning import MPPI
from wmrt.core.errors import SafetyError, UnsupportedError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": 23}, "budget must be a whole number of at least 24, got 23"),
        ({"budget": 8.0}, "whole number"),
        ({"horizon": 0}, "horizon must be"),
        ({"temperature": 0.0}, "temperature must be a number above 0"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"spread": -0.1}, "spread must be a number at least 0"),
        ({"spread": [0.1, math.inf]}, "spread"),
        ({"spread": "wide"}, "spread"),
        ({"smoothness": 1.0}, "smoothness must be a number 0 to below 1"),
        ({"discount": 1.01}, "discount"),
        ({"tail": -1}, "tail"),
        ({"margin": -1.0}, "margin"),
        ({"share": 0.0}, "share"),
        ({"share": True}, "share"),
        ({"seed": -1}, "seed"),
    ],
)
def test_values_out_of_range_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SafetyError, match=re.escape(said)):
        MPPI(**options)


def test_settings_survive_json() -> None:
    given = MPPI(budget=96, spread=[0.1, 0.2], seed=7)
    assert MPPI(**json.loads(json.dumps(given.to_json()))) == given


def test_a_model_that_cannot_imagine_is_refused() -> None:
    policy = FakePolicy(lambda state, previous: answer(np.zeros(2, np.float32)))
    with pytest.raises(SafetyError, match=r"imagine\(\) and fork\(\)"):
        MPPI().around(policy, limits(), math.inf)  # type: ignore[arg-type]


def test_spreads_of_another_number_of_actuators_are_refused() -> None:
    with pytest.raises(SafetyError, match="spread has 2 values"):
        MPPI(spread=(0.1, 0.2)).around(Cart(), limits(), math.inf)


class Slow(Cart):
    """Takes 2 ms a step and 0.25 ms an imagined one."""

    timer = FakeTimer()

    def step(self, state: Any, previous_action: Any) -> Any:
        self.timer.advance(2e-3)
        return super().step(state, previous_action)

    def imagine(self, plans: Any) -> Any:
        self.timer.advance(0.25e-3 * plans.shape[0] * plans.shape[1])
        return super().imagine(plans)


def test_a_budget_that_does_not_fit_is_refused_with_figures() -> None:
    cart = Slow()
    with pytest.raises(UnsupportedError) as error:
        MPPI(budget=400, share=0.51).around(cart, limits(), 0.1, cart.timer)
    said = str(error.value)
    assert "budget of 400 imagined steps takes 102.0 ms" in said
    assert "the policy alone 2.0" in said
    assert "deadline of 100 ms allows 51.0 (51% of it)" in said
    fits = int(re.search(r"about (\d+) would fit", said)[1])  # type: ignore[index]
    assert fits == 192  # 49 ms of 0.25 are 196: in whole sequences of 8
    planner = MPPI(budget=fits, share=0.51).around(cart, limits(), 0.1, cart.timer)
    assert planner.timing is not None
    assert planner.timing._asdict() == pytest.approx(
        {"step_ms": 50.0, "slowest_ms": 50.0, "own_ms": 2.0, "allowed_ms": 51.0}
    )
    with pytest.raises(UnsupportedError):
        MPPI(budget=fits + 8, share=0.51).around(cart, limits(), 0.1, cart.timer)


def test_a_deadline_too_short_for_any_budget_says_so() -> None:
    cart = Slow()
    with pytest.raises(UnsupportedError, match="no budget would fit at horizon 8"):
        MPPI().around(cart, limits(), 0.005, cart.timer)


def test_measuring_leaves_the_model_alone() -> None:
    cart = Slow()
    planner = MPPI(budget=24).around(cart, limits(), 1.0, cart.timer)
    assert cart.forks == 1 and not cart.seen and not cart.resets
    assert planner.stats()["imagined_steps"] == 0 and planner.model is cart
    timing = planner.stats()["timing"]
    assert timing["step_ms"] == pytest.approx(8.0) and timing["allowed_ms"] == pytest.approx(800.0)


def test_without_a_deadline_nothing_is_measured() -> None:
    cart = Slow()
    planner = MPPI().around(cart, limits(), math.inf, cart.timer)
    assert planner.timing is None and not cart.forks and planner.stats()["timing"] is None


def test_a_model_that_imagines_nothing_finite_cannot_be_measured() -> None:
    cart = Slow()
    cart.spoil = lambda plans, reward: reward * math.nan
    with pytest.raises(UnsupportedError, match="imagination is finite"):
        MPPI(budget=24).around(cart, limits(), 1.0, cart.timer)
