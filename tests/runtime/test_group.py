"""Robots that share each read of the weights: each answers as it would alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.models import eager, same, states, tiny
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.runtime import Step, WorldModel
from wmrt.runtime.group import SessionGroup


def native(seed: int, **options: Any) -> WorldModel:
    changes = {"window": 7, "past": 3}
    return WorldModel.from_checkpoint(tiny(seed, **changes), executor="native", **options)


def streams(model: WorldModel, robots: int, steps: int, seed: int) -> list[list[dict[str, Any]]]:
    return [states(model.schema, steps, seed + i) for i in range(robots)]


@pytest.mark.parametrize("robots", [1, 3, 16])
@pytest.mark.parametrize("recipe", ["bf16", "nvfp4", "w4a8", "mxfp4-a16"])
def test_each_robot_answers_as_it_would_alone(recipe: str, robots: int, seed: int) -> None:
    model = native(seed, recipe=recipe)
    group, stream = SessionGroup(model, robots), streams(model, robots, 9, seed)
    alone = [model.fork() for _ in range(robots)]
    for t in range(9):  # past the wrap-around
        together = group.step([own[t] for own in stream])
        for i in range(robots) if robots < 16 else (0, 7, 15):
            assert same(together[i], alone[i].step(stream[i][t])), f"robot {i}, step {t}"


def test_some_may_step_while_others_stay(seed: int) -> None:
    model = native(seed, recipe="nvfp4")
    group, stream = SessionGroup(model, 3), streams(model, 3, 10, seed)
    alone = [model.fork() for _ in range(3)]
    draw = np.random.default_rng(seed)
    for t in range(10):
        chosen = draw.permutation(3)[: draw.integers(1, 4)].tolist()
        before = draw.uniform(-1, 1, (len(chosen), 2)).tolist()
        together = group.step([stream[i][t] for i in chosen], before, robots=chosen)
        for step, i, action in zip(together, chosen, before, strict=True):
            assert same(step, alone[i].step(stream[i][t], action))


def test_the_report_says_what_steps_them(seed: int) -> None:
    model = native(seed, recipe="nvfp4")
    group = SessionGroup(model, 3)
    for chosen in ([0, 1], [2], [1, 2]):
        group.step([{}] * len(chosen), robots=chosen)
    report = group.report()
    assert (report.executor, report.robots, report.rows) == ("native", 3, (1, 2, 3))
    assert report.ran == {1: 1, 2: 2, 3: 0} and not report.graph
    assert report.kernels == model.report().kernels
    assert report.bytes["ring"] == 3 * model.session.ring.nbytes and report.bytes["workspace"] > 0


def test_noise_is_each_robots_own(seed: int) -> None:
    checkpoint = tiny(seed)
    options: dict[str, Any] = {"executor": "native", "action_noise": 0.2, "sample": True}
    group = SessionGroup(WorldModel.from_checkpoint(checkpoint, seed=5, **options), 2)
    alone = [WorldModel.from_checkpoint(checkpoint, seed=5 + i, **options) for i in range(2)]
    stream = states(checkpoint.schema, 4, seed)
    first = _drive(group, stream, alone)
    group.reset()
    for model in alone:
        model.reset()
    assert all(same(a, b) for a, b in zip(first, _drive(group, stream, alone), strict=True))


def _drive(
    group: SessionGroup, stream: list[dict[str, Any]], alone: list[WorldModel]
) -> list[Step]:
    steps: list[Step] = []
    for state in stream:
        together = group.step([state, state])
        assert all(same(a, b.step(state)) for a, b in zip(together, alone, strict=True))
        assert not np.array_equal(together[0].action, together[1].action)
        steps += together
    return steps


def test_one_robots_memory_can_be_kept_moved_and_forgotten(seed: int) -> None:
    model = native(seed, recipe="mxfp4")
    group, stream = SessionGroup(model, 2), states(model.schema, 12, seed)
    for state in stream[:5]:
        group.step([state, {}])
    kept = group.snapshot(0)
    model.restore(kept)
    group.restore(1, kept)
    ahead = [group.step([state, state]) for state in stream[5:8]]
    for pair, state in zip(ahead, stream[5:8], strict=True):
        assert same(pair[0], pair[1]) and same(pair[0], model.step(state))
    group.reset(1)
    fresh = model.fork()
    fresh.reset()
    after = group.step([stream[8], stream[8]])
    assert same(after[1], fresh.step(stream[8])) and not same(after[0], after[1])


def test_what_it_refuses(seed: int) -> None:
    model = native(seed)
    nonsense: tuple[Any, ...] = (0, 17, -1, "two", 2.5, True)
    for robots in nonsense:
        with pytest.raises(UsageError, match="1 to 16"):
            SessionGroup(model, robots)
    with pytest.raises(UnsupportedError, match=r"by the eager one \(asked for\); use one fork"):
        SessionGroup(eager(tiny(seed)), 2)
    group = SessionGroup(model, 2)
    for states_, options in (
        ([{}], {}),
        ([], {"robots": []}),
        ([{}, {}], {"robots": [1, 1]}),
        ([{}, {}], {"previous_actions": [None]}),
    ):
        with pytest.raises(UsageError, match="one state"):
            group.step(states_, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="states is a dict; give a list, one state for each"):
        group.step({"speed": 1.0, "gap": 2.0})  # type: ignore[arg-type]
    for robot in (2, "a", 1.5):
        with pytest.raises(UsageError, match="robots 0 to 1"):
            group.step([{}], robots=[robot])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="robots 0 to 1"):
        group.snapshot(-1)
