"""The shipped model in the loop for 1 000 steps of a broken sensor feed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from wmrt.control import Channel, Controller, StepClock
from wmrt.runtime import WorldModel

STEPS = 1000
PERIOD = 0.1


class Liar:
    """An object whose every conversion raises."""

    def __float__(self) -> float:
        raise RuntimeError("no")

    __str__ = __repr__ = __int__ = __float__  # type: ignore[assignment]


def corrupt(state: dict[str, Any], rng: np.random.Generator) -> Any:
    """The state with one fault of every kind a sensor feed has shown, or untouched."""
    field = str(rng.choice(list(state)))
    faults: list[Any] = [
        state,
        {**state, field: math.nan},
        {**state, field: math.inf},
        {**state, field: -math.inf},
        {k: v for k, v in state.items() if k != field},
        {**state, field: None},
        {**state, field: "seventeen"},
        {**state, field: [1.0, 2.0]},
        {**state, field: 1e300},
        {**state, field: 10**400},
        {**state, field: Liar()},
        {**state, "lane": "shoulder"},
        {**state, "undeclared": 1.0},
        None,
        list(state.values()),
        "state",
        {},
    ]
    return faults[int(rng.integers(len(faults)))]


@pytest.mark.parametrize("recipe", ["nvfp4"])
def test_nothing_gets_out_and_nothing_gets_through(recipe: str) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("highway_env", reason="the simulator is not installed: make setup")
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    env = gymnasium.make("wmrt.envs:wmrt/Highway-v0")
    model = WorldModel.from_pretrained("highway", recipe=recipe)
    channels = (
        Channel.from_policy("bf16", WorldModel.from_pretrained("highway", recipe="bf16")),
        Channel("rule", env.unwrapped.rule_action),
    )
    # The deadline is left out: what a busy machine makes late is not what this test is about.
    controller = Controller(model, PERIOD, math.inf, clock=StepClock(PERIOD), channels=channels)
    _, info = env.reset(seed=seed % 400_000)
    previous = np.array(model.schema.neutral)
    deltas = np.array([dim.max_delta(PERIOD) for dim in model.actions.dims])
    # float32 actions near 1: half an ulp of each of the two differs from the exact limit
    slack = 2 * float(np.finfo(np.float32).eps)
    asked = 0
    for step in range(STEPS):
        action = controller.act(corrupt(info["state"], rng))
        assert action.dtype == np.float32 and action.shape == (2,)
        assert np.isfinite(action).all(), f"step {step}: {action}"
        assert (np.abs(action) <= 1).all(), f"step {step}: {action}"
        move = action - previous
        assert (move <= deltas[:, 0] + slack).all(), f"step {step}: rose by {move}"
        assert (move >= -deltas[:, 1] - slack).all(), f"step {step}: fell by {move}"
        previous = action.astype(np.float64)
        last = controller.last
        asked += last is not None and last.policy_ns is not None
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            _, info = env.reset(seed=(seed + step) % 400_000)
            controller.reset()
            previous = np.array(model.schema.neutral)
    env.close()
    assert 0 < asked < STEPS, "the feed was meant to have both fit and unfit states"
    trips = controller.stats()["trips"]
    assert trips["validity"] > 0, trips
