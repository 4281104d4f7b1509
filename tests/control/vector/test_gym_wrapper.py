"""Breakers of a vectorised environment: one set each, in each autoreset mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.control.support import SCHEMA as OTHER
from tests.control.support import STATE
from tests.control.vector import toys
from tests.control.vector.toys import MODES, CanaryEnv
from tests.safety.support import DRIVING, Watch, limits
from wmrt.control import ControlledEnv
from wmrt.control.vector import ControlledVectorEnv
from wmrt.core.errors import SafetyError, UsageError
from wmrt.safety import State

#: None of these is an action of one robot.
HOSTILE: list[Any] = [
    [np.nan, 0.0],
    [np.inf, 0.0],
    [0.0, 100.0],
    [0.0],
    [[0.0, 0.0]],
    "ab",
    None,
    [None, 0.0],
    ["0.5", "0.5"],
    np.array([True, False]),
    np.array([0.1 + 1j, 0.0]),
    object(),
]


def step(envs: ControlledVectorEnv, actions: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """Rewards and infos of a step, with the resets that mode DISABLED wants."""
    _, rewards, terminated, truncated, infos = envs.step(actions)
    ended = terminated | truncated
    if envs.episodes.mode is AutoresetMode.DISABLED and ended.any():
        envs.reset(options={"reset_mask": ended})
    return rewards, infos


@pytest.mark.parametrize("mode", MODES)
def test_random_and_hostile_actions_stay_within_the_limits(mode: AutoresetMode, seed: int) -> None:
    """The sub-environments themselves refuse what is no float32[2] in their box."""
    rng = np.random.default_rng(seed)
    inner = toys.sync(4, mode)
    envs = ControlledVectorEnv(inner)
    envs.reset()
    for _ in range(300):
        rows: list[Any] = list(rng.uniform(-1.5, 1.5, (4, 2)))
        if rng.random() < 0.3:
            rows[rng.integers(4)] = HOSTILE[rng.integers(len(HOSTILE))]
        step(envs, rows)
    for env in inner.envs:
        given = env.unwrapped.given  # type: ignore[attr-defined]
        watch = Watch(DRIVING, (0.0, 0.0))
        assert len(given) > 100
        for n, (_, steps, action) in enumerate(given):
            if steps == 0:  # a new episode counts from neutral
                watch.restart((0.0, 0.0))
            watch.see(n * 100_000_000, action.tolist())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("action", HOSTILE)
def test_one_robots_action_trips_its_own_breakers_only(mode: AutoresetMode, action: Any) -> None:
    envs = ControlledVectorEnv(toys.sync(3, mode))
    envs.reset()
    rewards, infos = step(envs, [[0.01, 0.0], action, [0.01, 0.0]])
    assert rewards.tolist() == [1.0, 0.0, 1.0]
    record = infos["breakers"]
    assert record["source"].tolist() == ["policy", "fallback", "policy"]
    assert record["tripped"].tolist() == [(), (1,), ()]
    assert record["action"].dtype == np.float32 and record["action"].shape == (3, 2)
    assert record["_action"].all() and infos["_breakers"].all()


@pytest.mark.parametrize("actions", [None, 7, "ab", [[0.01, 0.0]], np.zeros((2, 3, 2)), {}])
def test_a_batch_that_is_none_trips_all(actions: Any) -> None:
    envs = ControlledVectorEnv(toys.sync(3, AutoresetMode.SAME_STEP))
    envs.reset()
    infos = envs.step(actions)[4]
    assert infos["breakers"]["tripped"].tolist() == [(1,), (1,), (1,)]


@pytest.mark.parametrize("make", [toys.sync, partial(toys.processes, shared_memory=False)])
def test_what_is_ignored_is_not_judged(make: Callable[..., Any]) -> None:
    envs = ControlledVectorEnv(make(2, AutoresetMode.NEXT_STEP))
    envs.reset()
    step(envs, [[0.01, 0.0], [0.01, 0.0]])  # the episode of 1 is over
    rewards, infos = step(envs, [[0.02, 0.0], [np.nan, 9.0]])
    assert rewards.tolist() == [1.0, 0.0]
    assert infos["_breakers"].tolist() == [True, False]
    assert infos["breakers"]["_source"].tolist() == [True, False]
    rewards, infos = step(envs, [[0.03, 0.0], [0.01, 0.0]])  # 1 counts from neutral again
    assert rewards.tolist() == [1.0, 1.0]
    assert infos["breakers"]["state"].tolist() == ["closed", "closed"]
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_latch_stays_with_its_robot(mode: AutoresetMode) -> None:
    envs = ControlledVectorEnv(toys.sync(3, mode))
    envs.reset()
    envs.breakers[1].estop()
    for _ in range(12):
        _, infos = step(envs, np.full((3, 2), 0.001, np.float32))
        record = infos["breakers"]
        for index, known in enumerate(infos["_breakers"]):
            assert not known or record["state"][index] == ("latched" if index == 1 else "closed")
    assert [each.state for each in envs.breakers] == [State.CLOSED, State.LATCHED, State.CLOSED]
    events = envs.breakers[1].events.snapshot()
    assert {event.robot for event in events} == {"robot 1"}


@pytest.mark.parametrize("mode", MODES)
def test_open_breakers_close_with_the_episode_of_their_own(mode: AutoresetMode) -> None:
    """Robot 0 has a bad reading in its first episode, which opens its breakers until it ends."""

    def find(obs: Any, info: dict[str, Any]) -> Any:
        env, episode, _ = obs["where"]
        speed = float("nan") if (env, episode) == (0, 1) else 20.0
        return dict(info["state"]) | {"speed": speed}

    envs = ControlledVectorEnv(toys.sync(2, mode), state=find)
    envs.reset()
    opened = []
    for _ in range(8):
        episode = envs.episodes.number[0]
        _, infos = step(envs, np.full((2, 2), 0.001, np.float32))
        if infos["_breakers"][0]:
            opened.append((int(episode), infos["breakers"]["state"][0]))
        assert not infos["_breakers"][1] or infos["breakers"]["state"][1] == "closed"
    assert {state for episode, state in opened if episode == 1} == {"open"}
    assert {state for episode, state in opened if episode > 1} == {"closed"}


@pytest.mark.parametrize("mode", MODES)
def test_an_action_is_judged_by_the_state_it_answers(mode: AutoresetMode) -> None:
    """Robot 0 loses its speed after its first step, and so at its second action."""

    def find(obs: Any, info: dict[str, Any]) -> Any:
        env, _, steps = obs["where"]
        return dict(info["state"]) | {"speed": None if env == 0 and steps == 1 else 20.0}

    envs = ControlledVectorEnv(toys.sync(2, mode), state=find)
    envs.reset()
    sources = [step(envs, np.full((2, 2), 0.001))[1]["breakers"]["source"][0] for _ in range(2)]
    assert sources == ["policy", "fallback"]


def test_what_the_environment_says_is_handed_on() -> None:
    class Speaking(CanaryEnv):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, info | {"breakers": 7, "note": "n"}

    makers: list[Any] = [lambda: Speaking(0)] * 2
    schemaless = ControlledVectorEnv(
        SyncVectorEnv(makers), limits=limits(), state=lambda obs, info: STATE, schema=OTHER
    )
    schemaless.reset(seed=3)
    infos = schemaless.step(np.zeros((2, 2)))[4]
    assert infos["note"].tolist() == ["n", "n"] and infos["steps"].tolist() == [1, 1]
    assert infos["breakers"]["source"].tolist() == ["policy", "policy"]
    assert schemaless.num_envs == 2 and schemaless.single_action_space == CanaryEnv.action_space


class BareEnv(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = CanaryEnv.action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.float32([0.0]), {}

    def step(self, action: Any) -> Any:
        return np.float32([0.0]), 0.0, False, False, {}


def test_limits_are_needed() -> None:
    bare: Any = SyncVectorEnv([BareEnv, BareEnv])
    with pytest.raises(SafetyError, match="does not state its limits"):
        ControlledVectorEnv(bare)
    envs = ControlledVectorEnv(bare, limits=limits())  # no schema: level 0 is silent
    envs.reset()
    assert envs.step(np.zeros((2, 2)))[4]["breakers"]["source"].tolist() == ["policy"] * 2
    with pytest.raises(SafetyError, match=r"limits must be wmrt\.safety\.Limits"):
        ControlledVectorEnv(bare, limits=5)  # type: ignore[arg-type]
    with pytest.raises(SafetyError, match="schema must be a StateSchema"):
        ControlledVectorEnv(bare, limits=limits(), schema={})
    with pytest.raises(SafetyError, match=r"state must be a function"):
        ControlledVectorEnv(bare, limits=limits(), state=5)  # type: ignore[arg-type]
    bare.metadata = {}
    with pytest.raises(UsageError, match=r"autoreset='missing'"):
        ControlledVectorEnv(bare, limits=limits())


def test_an_environment_that_is_vectorised_by_itself_may_state_its_limits() -> None:
    class Own(gymnasium.vector.VectorEnv[Any, Any, Any]):
        num_envs = 2
        metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
        state_schema, action_spec, period = OTHER, DRIVING, 0.1

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return {name: [value] * 2 for name, value in STATE.items()}, {}

        def step(self, actions: Any) -> Any:
            assert actions.dtype == np.float32
            return self.reset()[0], np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}

    envs = ControlledVectorEnv(Own())
    envs.reset()
    assert envs.step(np.zeros((2, 2)))[4]["breakers"]["source"].tolist() == ["policy"] * 2


@pytest.mark.parametrize("mode", MODES)
def test_breakers_inside_each_sub_environment(mode: AutoresetMode) -> None:
    """The other way: `ControlledEnv` around each, whose own resets are the environment's."""
    makers = [partial(toys.wrapped, index, (ControlledEnv,)) for index in range(2)]
    envs = SyncVectorEnv(makers, autoreset_mode=mode)
    drive = np.float32([[0.01, 0.0], [0.01, 0.0]])
    envs.reset()
    _, rewards, *_, infos = envs.step(drive)
    inner = infos if mode is not AutoresetMode.SAME_STEP else infos["final_info"]
    assert rewards.tolist() == [1.0, 1.0]
    assert inner["breakers"]["source"][1] == "policy"
    if mode is AutoresetMode.DISABLED:
        envs.reset(options={"reset_mask": np.array([False, True])})
    bad = drive.copy()
    bad[0, 0] = np.nan
    _, rewards, *_, infos = envs.step(bad)
    assert rewards[0] == 0.0
    assert infos["breakers"]["tripped"][0] == (1,)
