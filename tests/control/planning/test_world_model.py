"""Planning over a real world model: its memory, and the bits on another number of threads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.control.support import simulated
from tests.runtime.models import model_of, same, states
from wmrt.control import default_limits
from wmrt.control.planning import MPPI, Planner
from wmrt.runtime import WorldModel


def planner_of(model: WorldModel, seed: int) -> Planner:
    settings = MPPI(budget=100, horizon=4, seed=seed, temperature=0.01, margin=0.0)
    return settings.around(model, default_limits(model.schema, model.actions, 0.1), math.inf)


def test_imagining_leaves_the_model_s_memory_as_a_drive_without_it(seed: int) -> None:
    model, reference = model_of(seed), model_of(seed)
    planner = planner_of(model, seed)
    last: Any = tuple(model.schema.neutral)
    for state in states(model.schema, 25, seed):
        expected = reference.step(state, last)
        answer = planner.step(state, last)
        assert same(answer.own, expected)
        last = answer.action
    assert planner.stats()["taken"]["plan"] > 5


def test_another_number_of_threads_plans_the_same_bits(seed: int) -> None:
    runs = []
    for threads in (1, 2):
        model = model_of(seed, executor="native", threads=threads)
        controller = simulated(planner_of(model, seed))
        controller.reset()
        sent = [controller.act(state).tobytes() for state in states(model.schema, 25, seed)]
        runs.append((sent, controller.model.stats()))  # type: ignore[attr-defined]
    assert runs[0] == runs[1]


def test_plans_of_a_model_are_within_its_limits_and_not_all_its_own(seed: int) -> None:
    model = model_of(seed)
    planner = planner_of(model, seed)
    last = np.array(model.schema.neutral, np.float32)
    for state in states(model.schema, 25, seed):
        answer = planner.step(state, last)
        assert answer.chunk.dtype == np.float32 and np.isfinite(answer.chunk).all()
        for dim, before, value in zip(model.actions.dims, last, answer.action, strict=True):
            up, down = dim.max_delta(0.1)
            assert -down - 1e-9 <= float(value) - float(before) <= up + 1e-9
        last = answer.action
    assert planner.stats()["imagined_steps"] == 25 * planner.settings.steps
