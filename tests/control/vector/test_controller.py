"""One controller per sub-environment, in each autoreset mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.control.vector import toys
from tests.control.vector.toys import MODES, CanaryPolicy, expected, policy_of
from wmrt.control import Controller, StepClock
from wmrt.control.vector import StateInfo, VectorController, drive_vector
from wmrt.core.errors import SafetyError, UsageError
from wmrt.safety import State

STEPS = 40


def driven(
    envs: Any, drivers: VectorController, steps: int = STEPS
) -> tuple[list[int], np.ndarray]:
    """Actions that counted, and the sum of rewards, per sub-environment."""
    counted = [0] * envs.num_envs
    rewards = np.zeros(envs.num_envs)
    for step in drive_vector(envs, drivers, steps, seed=1):
        rewards += step.rewards
        for index, outcome in enumerate(step.outcomes):
            counted[index] += outcome is not None
    envs.close()
    return counted, rewards


@pytest.mark.parametrize("make", [toys.sync, toys.processes])
@pytest.mark.parametrize("mode", MODES)
def test_each_sees_its_own_episodes_in_order(mode: AutoresetMode, make: Callable[..., Any]) -> None:
    count = 4 if make is toys.sync else 2
    envs = make(count, mode)
    controllers = toys.controllers(count)
    counted, rewards = driven(envs, VectorController(controllers, mode))
    assert rewards.tolist() == counted  # each action was the expected one, so nothing leaked
    for index, controller in enumerate(controllers):
        seen, want = policy_of(controller).seen, expected(index, counted[index])
        assert without_last_reset(seen) == without_last_reset(want)
        assert sum(controller.stats()["trips"].values()) == 0
    ignores = mode is AutoresetMode.NEXT_STEP
    assert all((n < STEPS) is ignores for n in counted)
    assert min(counted) >= STEPS // 2


def without_last_reset(seen: list[Any]) -> list[Any]:
    """When the next episode is begun is the mode's own business."""
    return seen[:-1] if seen[-1] == "reset" else seen


@pytest.mark.parametrize("mode", MODES)
def test_readings_arrive_as_they_were(mode: AutoresetMode) -> None:
    controllers = toys.controllers(3)
    driven(toys.sync(3, mode), VectorController(controllers, mode))
    for index, controller in enumerate(controllers):
        states = policy_of(controller).states
        assert {state["speed"] for state in states} == {21 if index == 0 else 20.75 + index}
        assert {state["wet"] for state in states} == {None if index == 1 else False}
        assert {state["lane"] for state in states} == {"left" if index == 1 else None}


def test_merged_states_are_refused() -> None:
    """What would be read: 21 m/s instead of 22.75, and a flag that is false instead of unknown."""
    makers: list[Any] = [lambda index=index: toys.CanaryEnv(index) for index in range(3)]
    envs = gymnasium.vector.SyncVectorEnv(makers)
    obs, infos = envs.reset()
    merged = infos["state"]
    assert merged["speed"].tolist() == [21, 21, 22] and merged["wet"].tolist() == [False] * 3
    drivers = VectorController(toys.controllers(3), AutoresetMode.NEXT_STEP)
    with pytest.raises(UsageError, match=r"wrap each sub-environment in StateInfo"):
        drivers.reset(obs, infos)


@pytest.mark.parametrize("mode", MODES)
def test_states_from_observations(mode: AutoresetMode) -> None:
    """``copy=False`` lets the environment write over its own observations."""
    found: list[Any] = []

    def find(obs: Any, info: dict[str, Any]) -> Any:
        found.append(obs["where"])
        names = ("env", "episode", "step")
        assert info["steps"] == obs["where"][2]
        assert set(info) <= {"state", "steps", "final_obs", "final_info"}
        return dict(zip(names, obs["where"], strict=True)) | {"speed": obs["speed"][0]}

    controllers = toys.controllers(3)
    envs = toys.sync(3, mode, copy=False)
    counted, rewards = driven(envs, VectorController(controllers, mode, state=find))
    assert rewards.tolist() == counted
    assert len({tuple(where.tolist()) for where in found}) == len(found)  # none written over
    without = toys.sync(3, mode)
    without.envs = [env.unwrapped for env in without.envs]  # no state in info: observations serve
    drivers = VectorController(toys.controllers(3), mode)
    drivers.reset(without.reset()[0], {})
    drivers.act()
    outcome = drivers.last[0]
    assert outcome is not None and outcome.source == "fallback"  # "speed" is missing there


@pytest.mark.parametrize("mode", MODES)
def test_a_latch_stops_one_robot_only(mode: AutoresetMode) -> None:
    controllers = toys.controllers(3)
    drivers = VectorController(controllers, mode)
    envs = toys.sync(3, mode)
    rewards = []
    for number, step in enumerate(drive_vector(envs, drivers, STEPS)):
        if number == 4:
            controllers[1].estop()
        rewards.append(step.rewards)
        for index in (0, 2):
            outcome = step.outcomes[index]
            assert outcome is None or outcome.source == "policy"
        if number > 4:
            outcome = step.outcomes[1]
            assert outcome is None or (outcome.source, outcome.after) == ("fallback", State.LATCHED)
    assert sum(rewards[8:])[1] == 0.0  # neutral, across several episodes
    assert min(sum(rewards)[[0, 2]]) >= STEPS // 2
    assert drivers.episodes.number[1] > 3


@pytest.mark.parametrize("mode", MODES)
def test_an_unfit_input_stops_one_robot_only(mode: AutoresetMode) -> None:
    def find(obs: Any, info: dict[str, Any]) -> Any:
        state = dict(info["state"])
        return state if state["env"] != 1 else state | {"speed": float("nan")}

    controllers = toys.controllers(3)
    driven(toys.sync(3, mode), VectorController(controllers, mode, state=find))
    asked = [controller.stats()["trips"]["validity"] for controller in controllers]
    assert asked[0] == asked[2] == 0 and asked[1] > 10
    assert "reset" in policy_of(controllers[1]).seen and not policy_of(controllers[1]).states


def test_a_masked_reset_begins_there_only() -> None:
    """In mode DISABLED an episode may also be cut short."""
    mode = AutoresetMode.DISABLED
    envs, controllers = toys.sync(4, mode), toys.controllers(4)
    drivers = VectorController(controllers, mode)
    drivers.reset(*envs.reset())
    obs, rewards, terminated, truncated, infos = envs.step(drivers.act())
    drivers.observe(obs, rewards, terminated, truncated, infos)
    ended = terminated | truncated
    assert ended.tolist() == [False, True, False, False]
    with pytest.raises(UsageError, match=r"the episodes of \[1\] are over"):
        drivers.act()
    ended[3] = True
    drivers.reset(*envs.reset(options={"reset_mask": ended}), mask=ended)
    envs.step(drivers.act())
    seen = [policy_of(controller).seen for controller in controllers]
    assert seen[0] == ["reset", (0, 1, 0), (0, 1, 1)]
    assert seen[3] == ["reset", (3, 1, 0), "reset", (3, 2, 0)]
    assert drivers.episodes.number.tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_a_full_reset_forgets_what_was_over(mode: AutoresetMode) -> None:
    envs, controllers = toys.sync(2, mode), toys.controllers(2)
    drivers = VectorController(controllers, mode)
    drivers.reset(*envs.reset())
    drivers.observe(*envs.step(drivers.act()))
    drivers.reset(*envs.reset())
    rewards = envs.step(drivers.act())[1]
    assert rewards.tolist() == [1.0, 1.0]
    assert all(outcome is not None for outcome in drivers.last)


def test_nothing_is_skipped_silently() -> None:
    envs = toys.sync(2, AutoresetMode.NEXT_STEP)
    drivers = VectorController(toys.controllers(2), "NextStep")
    with pytest.raises(UsageError, match="there is no episode yet"):
        drivers.act()
    first = envs.reset()
    with pytest.raises(UsageError, match="first reset must be of every"):
        drivers.reset(*first, mask=np.array([True, False]))
    drivers.reset(*first)
    answer = envs.step(np.zeros((2, 2), np.float32))
    with pytest.raises(UsageError, match="no actions led here"):
        drivers.observe(*answer)
    drivers.act()
    with pytest.raises(UsageError, match="was not observed; call observe"):
        drivers.act()
    with pytest.raises(UsageError, match=r"of shape \(3,\), not \(2,\)"):
        drivers.observe(answer[0], answer[1], np.zeros(3, bool), np.zeros(3, bool), answer[4])
    for mask in ([1, 0], [True], [[True, True]], [False, False], "x"):
        with pytest.raises(UsageError, match=r"give bool\[2\]"):
            drivers.reset(*first, mask=mask)


def test_robots_share_nothing() -> None:
    shared = CanaryPolicy()
    two = [Controller(shared, clock=StepClock(0.1)) for _ in range(2)]
    with pytest.raises(SafetyError, match="share their model"):
        VectorController(two, "NextStep")
    (one,) = toys.controllers(1)
    other = Controller(CanaryPolicy(), breakers=one.breakers, clock=StepClock(0.1))
    with pytest.raises(SafetyError, match="share their breakers"):
        VectorController([one, other], "NextStep")
    for wrong in ([], [one, None], one, "x"):
        with pytest.raises(SafetyError, match="controllers must be a sequence of Controller"):
            VectorController(wrong, "NextStep")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"one of \['NextStep', 'SameStep', 'Disabled'\]"):
        VectorController([one], "SameStepp")


# drive_vector


def test_drive_vector_checks_what_it_drives() -> None:
    drivers = VectorController(toys.controllers(2), "NextStep")
    for envs in (toys.sync(3, AutoresetMode.NEXT_STEP), toys.sync(2, AutoresetMode.SAME_STEP)):
        with pytest.raises(UsageError, match=r"2 controllers for mode NEXT_STEP"):
            next(drive_vector(envs, drivers, 1))
    real = VectorController([Controller(CanaryPolicy())], "NextStep")
    with pytest.raises(UsageError, match="clock=StepClock"):
        next(drive_vector(toys.sync(1, AutoresetMode.NEXT_STEP), real, 1))
    with pytest.raises(SafetyError, match="steps must be a whole number of at least 1"):
        next(drive_vector(toys.sync(2, AutoresetMode.NEXT_STEP), drivers, 0))


def test_a_step_says_what_it_was() -> None:
    drivers = VectorController(toys.controllers(2), "NextStep")
    steps = list(drive_vector(toys.sync(2, AutoresetMode.NEXT_STEP), drivers, 3))
    assert [step.episode.tolist() for step in steps] == [[1, 1], [1, 1], [1, 2]]
    assert steps[1].outcomes[1] is None and steps[1].actions[1].tolist() == [0.0, 0.0]
    assert steps[2].actions.dtype == np.float32 and steps[2].actions.shape == (2, 2)
    assert [step.truncated.tolist() for step in steps] == [
        [False, True],
        [False, False],
        [True, False],
    ]


@pytest.mark.parametrize("mode", MODES)
def test_highway_env(mode: AutoresetMode, seed: int) -> None:
    """Two cars under the rules, which leave their seeds' trajectories to themselves."""
    from wmrt.envs.highway import HighwayEnv
    from wmrt.envs.rules import rule_action
    from wmrt.envs.state import ACTIONS, highway_schema

    class Rules:
        schema, actions = highway_schema(), ACTIONS

        def reset(self) -> None:
            pass

        def step(self, state: Any, previous_action: Any) -> Any:
            return toys.SimpleNamespace(action=rule_action(state, previous_action))

    def run(seeds: list[int]) -> np.ndarray:
        config = {"duration": 0.4, "vehicles_count": 4}
        makers = [lambda: StateInfo(HighwayEnv(config)) for _ in seeds]
        envs = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
        controllers = [Controller(Rules(), 0.1, np.inf, clock=StepClock(0.1)) for _ in seeds]
        drivers = VectorController(controllers, mode)
        steps = list(drive_vector(envs, drivers, 6, seed=seeds))
        assert all(step.truncated.all() == (n == 3) for n, step in enumerate(steps))
        outcomes = [outcome for step in steps for outcome in step.outcomes if outcome is not None]
        assert {outcome.source for outcome in outcomes} == {"policy"}
        return np.stack([step.rewards for step in steps[:4]])

    seeds = [seed % 1000, seed % 1000 + 1]
    assert run(seeds)[:, 0].tolist() == run(seeds[::-1])[:, 1].tolist()
