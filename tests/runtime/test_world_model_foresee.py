"""What the next state will be under the action that was really sent, and steps nobody answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.models import drive, model_of, same, states
from wmrt.core.errors import StateError, UsageError

EXECUTORS = [("bf16", "eager"), ("nvfp4", "auto"), ("bf16", "auto")]


@pytest.mark.parametrize(("recipe", "executor"), EXECUTORS)
def test_foreseeing_ones_own_action_is_the_prediction(
    recipe: str, executor: str, seed: int
) -> None:
    model = model_of(seed, recipe=recipe, executor=executor)
    for step in (model.step(state) for state in states(model.schema, 12, seed)):
        assert model.foresee(step.action) == step.predicted


@pytest.mark.parametrize(("recipe", "executor"), EXECUTORS)
def test_foreseeing_another_action_is_imagining_it(recipe: str, executor: str, seed: int) -> None:
    model = model_of(seed, recipe=recipe, executor=executor)
    rng = np.random.default_rng(seed)
    seen = set()
    for state in states(model.schema, 12, seed):
        predicted = model.step(state).predicted
        action = rng.uniform(-1, 1, 2).astype(np.float32)
        imagined = model.schema.decode(model.imagine(action[None]).q[0, 0])
        assert model.foresee(action) == imagined
        seen.add(imagined == predicted)
    assert False in seen  # the action matters


@pytest.mark.parametrize(("recipe", "executor"), EXECUTORS)
def test_foreseeing_advances_nothing(recipe: str, executor: str, seed: int) -> None:
    model, reference = (model_of(seed, recipe=recipe, executor=executor) for _ in range(2))
    rng = np.random.default_rng(seed)
    for state in states(model.schema, 12, seed):
        assert same(model.step(state), reference.step(state))
        model.foresee(rng.uniform(-1, 1, 2))


@pytest.mark.parametrize(("recipe", "executor"), EXECUTORS)
@pytest.mark.parametrize("options", [{}, {"sample": True, "seed": 3}])
def test_a_step_that_was_only_observed_leaves_the_same_memory(
    recipe: str, executor: str, options: dict[str, Any], seed: int
) -> None:
    model, reference = (model_of(seed, recipe=recipe, executor=executor, **options) for _ in "ab")
    rng = np.random.default_rng(seed)
    stream = states(model.schema, 90, seed)  # beyond the window
    for n, state in enumerate(stream):
        previous = rng.uniform(-1, 1, 2).astype(np.float32)
        expected = reference.step(state, previous)
        if n % 3 == 0:
            assert same(model.step(state, previous), expected)
        else:
            model.observe(state, previous)


def test_what_cannot_be_foreseen_or_observed(seed: int) -> None:
    model = model_of(seed)
    with pytest.raises(UsageError, match="call step first"):
        model.foresee([0.0, 0.0])
    state = states(model.schema, 1, seed)[0]
    drive(model, [state])
    with pytest.raises(StateError, match=r"expected 2 numbers"):
        model.foresee([0.0])
    with pytest.raises(StateError, match=r"expected 2 numbers"):
        model.observe(state, [2.0, 0.0])
