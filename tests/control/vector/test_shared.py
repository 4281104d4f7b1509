"""Robots that act at once and share each read of the weights."""

from __future__ import annotations

import threading
from asyncio import CancelledError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.control.support import simulated
from tests.control.vector import toys
from tests.control.vector.toys import MODES, CanaryPolicy, expected
from tests.runtime.models import same, tiny
from wmrt.control.vector import SharedStep, VectorController, drive_vector
from wmrt.core.errors import SafetyError, UsageError
from wmrt.runtime import Step, WorldModel
from wmrt.runtime.group import SessionGroup


class Group:
    """In place of a `SessionGroup`: a canary per robot, and who stepped together."""

    def __init__(self, robots: int) -> None:
        self.robots = robots
        self.model = SimpleNamespace(schema=toys.SCHEMA, actions=toys.DRIVING)
        self.canaries = [CanaryPolicy() for _ in range(robots)]
        self.batches: list[list[int]] = []
        self.refuse: tuple[type[BaseException], int] | None = None

    def step(self, states: Any, previous: Any, *, robots: Any) -> list[Any]:
        if self.refuse is not None and self.refuse[1] in robots:
            raise self.refuse[0](f"robot {self.refuse[1]}")
        self.batches.append(list(robots))
        own = zip(robots, states, previous, strict=True)
        return [self.canaries[robot].step(state, action) for robot, state, action in own]

    def reset(self, robot: int) -> None:
        self.canaries[robot].reset()


def made(robots: int, mode: AutoresetMode = AutoresetMode.SAME_STEP, **options: Any) -> Any:
    group: Any = Group(robots)
    shared = SharedStep(group)
    controllers = [simulated(policy) for policy in shared.policies]
    return group, shared, VectorController(controllers, mode, shared=shared, **options)


@pytest.mark.parametrize("mode", MODES)
def test_one_read_for_all_and_each_its_own_memory(mode: AutoresetMode) -> None:
    group, shared, drivers = made(4, mode)
    counted, batches = np.zeros(4, int), []
    for step in drive_vector(toys.sync(4, mode), drivers, 40):
        asked = [n for n, outcome in enumerate(step.outcomes) if outcome is not None]
        batches.append(asked)  # one step of the group, of whoever is not ignored
        counted[asked] += 1
        assert step.rewards[asked].tolist() == [1.0] * len(asked)
    assert group.batches == [asked for asked in batches if asked]
    assert shared.reads == len(group.batches) > 20
    for index, canary in enumerate(group.canaries):
        seen, want = canary.seen, expected(index, counted[index])
        assert [s for s in seen if s != "reset"] == [s for s in want if s != "reset"]
    shared.close()


def test_who_does_not_ask_is_not_waited_for() -> None:
    def find(obs: Any, info: dict[str, Any]) -> Any:
        state = dict(info["state"])
        return state | {"speed": None} if state["env"] == 1 else state

    group, shared, drivers = made(3, state=find)
    list(drive_vector(toys.sync(3, AutoresetMode.SAME_STEP), drivers, 10))
    assert group.batches == [[0, 2]] * 10
    shared.close()


def test_one_robots_refused_question_is_its_own() -> None:
    group, shared, drivers = made(3)
    group.refuse = (UsageError, 1)
    steps = list(drive_vector(toys.sync(3, AutoresetMode.SAME_STEP), drivers, 3))
    sources = [[outcome.source for outcome in step.outcomes if outcome] for step in steps]
    assert sources == [["policy", "fallback", "policy"]] * 3
    assert group.batches == [[0], [2]] * 3
    shared.close()


@pytest.mark.parametrize("failure", [RuntimeError, CancelledError])
def test_a_failure_in_the_middle_is_everybodys(failure: type[BaseException]) -> None:
    """Nobody knows whose memory advanced, so nobody may rely on its answer; nor waits for one."""
    group, shared, drivers = made(3)
    group.refuse = (failure, 1)
    (step,) = drive_vector(toys.sync(3, AutoresetMode.SAME_STEP), drivers, 1)
    assert [outcome.source for outcome in step.outcomes if outcome] == ["fallback"] * 3
    assert group.batches == []
    shared.close()


def test_alone_outside_of_a_common_step() -> None:
    group, shared, _ = made(2)
    state = dict.fromkeys(("env", "episode", "step"), 0)
    assert shared.policies[1].step(state, None).action[0] == np.float32(toys.COUNT)
    group.refuse = (UsageError, 1)
    with pytest.raises(UsageError, match="robot 1"):
        shared.policies[1].step(state, None)

    def twice() -> Any:
        first = shared.policies[0].step(state, None)
        return first, shared.policies[0].step(state, None)

    assert [step.action[0] for step in shared.together({0: twice})[0]] == [
        np.float32(toys.COUNT),
        np.float32(2 * toys.COUNT),
    ]
    assert group.batches == [[1], [0], [0]] and shared.reads == 3
    shared.close()


def test_what_one_raises_is_raised_when_all_are_done() -> None:
    group, shared, _ = made(2)
    state = dict.fromkeys(("env", "episode", "step"), 0)
    begun = threading.Event()

    def fails() -> Any:
        begun.wait(60.0)
        raise KeyError("mine")

    def asks() -> Any:
        begun.set()
        return shared.policies[1].step(state, None)

    with pytest.raises(KeyError, match="mine"):
        shared.together({0: fails, 1: asks})
    assert group.batches == [[1]]
    shared.close()


def test_the_policies_must_be_the_controllers() -> None:
    group: Any = Group(2)
    shared = SharedStep(group)
    for models in (toys.controllers(2), [simulated(each) for each in reversed(shared.policies)]):
        with pytest.raises(SafetyError, match="shared must be the SharedStep whose policies"):
            VectorController(models, "SameStep", shared=shared)
    shared.close()


class Listening:
    """A model or group that keeps what it answers to each robot."""

    def __init__(self, inner: Any, kept: list[list[Step]], robot: int | None = None) -> None:
        self._inner, self._kept, self._robot = inner, kept, robot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def step(self, state: Any, previous: Any, **options: Any) -> Any:
        answer = self._inner.step(state, previous, **options)
        if self._robot is not None:
            self._kept[self._robot].append(answer)
            return answer
        for robot, step in zip(options["robots"], answer, strict=True):
            self._kept[robot].append(step)
        return answer


def test_a_world_model_answers_bit_for_bit_as_alone(seed: int) -> None:
    """Through controllers, over episodes, with the native executor."""
    checkpoint = tiny(seed, toys.SCHEMA, window=7, past=3)
    model = WorldModel.from_checkpoint(checkpoint, executor="native", recipe="nvfp4")
    alone: list[list[Step]] = [[] for _ in range(3)]
    common: list[list[Step]] = [[] for _ in range(3)]
    group: Any = Listening(SessionGroup(model, 3), common)
    shared = SharedStep(group)
    forks = [Listening(model.fork(), alone, robot) for robot in range(3)]
    for policies, by in ((forks, None), (shared.policies, shared)):
        controllers = [simulated(policy) for policy in policies]
        drivers = VectorController(controllers, "SameStep", shared=by)
        list(drive_vector(toys.sync(3, AutoresetMode.SAME_STEP), drivers, 25))
    shared.close()
    assert shared.reads == 25
    for mine, theirs in zip(common, alone, strict=True):
        assert len(mine) == len(theirs) == 25
        assert all(same(a, b) for a, b in zip(mine, theirs, strict=True))
    assert len({step.action.tobytes() for step in alone[0]}) > 1
