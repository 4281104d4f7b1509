"""The shipped model's monitor in closed loop: a sensor suite that freezes is found, and named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from wmrt.control import Controller, Monitor, StepClock
from wmrt.runtime import WorldModel
from wmrt.safety import State

BEGINS, WITHIN = 30, 30


@pytest.mark.parametrize("recipe", ["nvfp4", "bf16"])
def test_a_frozen_feed_is_found(recipe: str, seed: int) -> None:
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("highway_env", reason="the simulator is not installed: make setup")
    env = gymnasium.make("wmrt.envs:wmrt/Highway-v0")
    model = WorldModel.from_pretrained("highway", recipe=recipe)
    period = env.unwrapped.period
    controller = Controller(
        model, period, math.inf, clock=StepClock(period), monitor=Monitor.of(model, "highway")
    )
    _, info = env.reset(seed=seed % 400_000)
    frozen: dict[str, Any] = {}
    for step in range(BEGINS + WITHIN):
        if step >= BEGINS:
            frozen = frozen or info["state"]
        controller.act(frozen or info["state"])
        last = controller.last
        if frozen and last is not None and last.after is State.OPEN:
            break
        _, _, terminated, truncated, info = env.step(last.action if last else None)
        assert not (terminated or truncated), "the drive ended before the fault was found"
    env.close()
    told = controller.stats()
    print(f"found in step {step}: {told['monitor']}")
    assert told["causes"]["surprise"] >= 1 and told["state"] == "open"
