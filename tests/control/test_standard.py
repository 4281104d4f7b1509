"""The usual two channels, built from checkpoints."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.model.networks import small_schema
from tests.runtime.models import states, tiny
from wmrt.control import Controller, StepClock, standard_channels
from wmrt.core.errors import SafetyError, UsageError
from wmrt.model.schema import StateSchema
from wmrt.runtime import WorldModel

PERIOD = 0.1


def rule(state: Any, previous: Any) -> Any:
    return (0.0, 0.0)


@pytest.mark.parametrize(
    ("running", "recipe", "second"),
    [("nvfp4", None, "bf16"), ("bf16", None, "nvfp4"), ("nvfp4", "w4a8", "w4a8")],
)
def test_another_recipe(running: str, recipe: str | None, second: str, seed: int) -> None:
    checkpoint = tiny(seed)
    model = WorldModel.from_checkpoint(checkpoint, recipe=running)
    channels = standard_channels(model, rule, checkpoint, recipe)
    assert [channel.name for channel in channels] == [f"model {second}", "rule"]
    held = channels[0].resident_bytes
    assert held is not None and held > 0 and channels[1].resident_bytes is None


def test_an_earlier_checkpoint(seed: int) -> None:
    model = WorldModel.from_checkpoint(tiny(seed), recipe="bf16")
    (second, _) = standard_channels(model, rule, tiny(seed + 1), "bf16")
    controller = Controller(model, PERIOD, math.inf, channels=(second, _), clock=StepClock(PERIOD))
    controller.act(states(model.schema, 1, seed)[0])
    assert controller.stats()["channels"][second.name]["votes"] == 1


def test_the_same_recipe_is_refused_by_the_controller(seed: int) -> None:
    checkpoint = tiny(seed)
    model = WorldModel.from_checkpoint(checkpoint, recipe="nvfp4")
    channels = standard_channels(model, rule, checkpoint, "nvfp4")
    with pytest.raises(SafetyError, match=r"are both the weights .* in nvfp4; they always agree"):
        Controller(model, PERIOD, channels=channels)


def test_what_does_not_fit_is_refused(seed: int) -> None:
    model = WorldModel.from_checkpoint(tiny(seed), recipe="nvfp4")
    fields = dict(small_schema().fields)
    other = StateSchema({name: fields[name] for name in list(fields)[1:]}, neutral=(0.0, 0.0))
    with pytest.raises(SafetyError, match="made for other states or actions"):
        standard_channels(model, rule, tiny(seed, other))
    with pytest.raises(UsageError, match="unknown recipe 'int3'"):
        standard_channels(model, rule, tiny(seed), "int3")
    with pytest.raises(SafetyError, match="rule must be a function"):
        standard_channels(model, 5, tiny(seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("executor", ["eager", "native"])
def test_a_channel_that_votes_now_and_then_has_no_gaps(executor: str, seed: int) -> None:
    checkpoint = tiny(seed)
    model = WorldModel.from_checkpoint(checkpoint, recipe="nvfp4")
    twin = WorldModel.from_checkpoint(checkpoint, recipe="bf16", executor=executor)
    (second, _) = standard_channels(model, rule, checkpoint, "bf16", every=4, executor=executor)
    rng = np.random.default_rng(seed)
    for n, state in enumerate(states(model.schema, 81, seed)):
        previous = rng.uniform(-1, 1, 2).astype(np.float32)
        expected = twin.step(state, previous).action
        if n % 4:
            assert second.observe is not None
            second.observe(state, previous)
        else:
            assert second.fn(state, previous).tolist() == expected.tolist()
