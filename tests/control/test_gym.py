"""The Gymnasium wrapper, the Stable-Baselines3 shape, and the rollout helper."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from tests.control.support import SCHEMA, STATE, FakePolicy, answer, constant, simulated
from tests.safety.support import DRIVING, PERIOD, Watch, limits
from wmrt.control import ControlledEnv, Controller, PredictPolicy, drive
from wmrt.core.errors import SafetyError, UsageError
from wmrt.safety import Breakers


class ToyEnv(gymnasium.Env[Any, Any]):
    """Ten steps; speed follows acceleration. ``state`` in info, arrays as observation."""

    state_schema = SCHEMA
    action_spec = DRIVING
    period = PERIOD
    observation_space = spaces.Box(-1e9, 1e9, (1,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self) -> None:
        self.actions: list[np.ndarray] = []
        self.overrides: dict[str, Any] = {}
        self.speed = 20.0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.actions.clear()
        self.speed = 20.0 + float(self.np_random.random())
        return self._obs(), self._info()

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.speed += 0.5 * float(action[1])
        return self._obs(), self.speed, False, len(self.actions) >= 10, self._info()

    def _obs(self) -> np.ndarray:
        return np.float32([self.speed])

    def _info(self) -> dict[str, Any]:
        return {"state": STATE | {"speed": self.speed} | self.overrides, "other": 1}


class BareEnv(gymnasium.Env[Any, Any]):
    observation_space = ToyEnv.observation_space
    action_space = ToyEnv.action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.float32([0.0]), {}

    def step(self, action: Any) -> Any:
        return np.float32([0.0]), 0.0, False, False, {}


def test_the_wrapper_passes_what_is_allowed_and_reports() -> None:
    toy = ToyEnv()
    env = ControlledEnv(toy)
    env.reset(seed=1)
    _, _, _, _, info = env.step(np.float32([0.25, -0.25]))
    assert toy.actions[0].tolist() == [0.25, -0.25] and toy.actions[0].dtype == np.float32
    assert info["other"] == 1
    record = info["breakers"]
    assert (record["source"], record["state"], record["tripped"]) == ("policy", "closed", ())
    record["action"][:] = 9.0
    assert toy.actions[0].tolist() == [0.25, -0.25]


@pytest.mark.parametrize(
    ("action", "source", "level"),
    [
        ([np.nan, 0.0], "fallback", 1),
        ([0.0, 100.0], "fallback", 1),
        ("left", "fallback", 1),
        (None, "fallback", 1),
        ([0.0], "fallback", 1),
        ([0.0, 0.9], "blocked", 2),
    ],
)
def test_the_wrapper_blocks(action: Any, source: str, level: int) -> None:
    toy = ToyEnv()
    env = ControlledEnv(toy)
    env.reset(seed=1)
    env.step([0.2, 0.2])
    record = env.step(action)[4]["breakers"]
    assert toy.actions[1].tolist() == [0.0, 0.0]
    assert (record["source"], record["tripped"]) == (source, (level,))


def test_the_wrapper_looks_at_the_state_the_action_answers() -> None:
    toy = ToyEnv()
    env = ControlledEnv(toy)
    env.reset(seed=1)
    toy.overrides = {"speed": float("nan")}
    assert env.step([0.1, 0.1])[4]["breakers"]["source"] == "policy"
    toy.overrides = {}
    record = env.step([0.1, 0.1])[4]["breakers"]
    assert (record["source"], record["tripped"], record["state"]) == ("fallback", (0,), "open")
    env.reset()
    assert env.step([0.1, 0.1])[4]["breakers"]["source"] == "policy"


def test_what_is_unknown_is_told_anew_in_each_episode() -> None:
    toy = ToyEnv()
    toy.overrides = {"gap": None}
    env = ControlledEnv(toy)
    for episode in range(1, 4):
        env.reset(seed=1)
        for _ in range(3):
            env.step([0.1, 0.1])
        assert env.breakers.stats()["counts"]["note"] == episode


def test_a_latch_survives_the_environments_reset() -> None:
    env = ControlledEnv(ToyEnv())
    env.breakers.estop()
    for _ in range(3):
        env.reset()
        assert env.step([0.1, 0.1])[4]["breakers"]["state"] == "latched"


def test_random_actions_through_the_wrapper_stay_within_the_limits(seed: int) -> None:
    toy = ToyEnv()
    env = ControlledEnv(toy)
    env.action_space.seed(seed)
    for _ in range(20):
        env.reset()
        watch = Watch(DRIVING, (0.0, 0.0))
        ended = False
        while not ended:
            _, _, _, ended, _ = env.step(1.3 * env.action_space.sample())
        for n, action in enumerate(toy.actions):
            watch.see(n * 100_000_000, action.tolist())


def test_the_wrapper_needs_limits() -> None:
    with pytest.raises(SafetyError, match="does not state its limits"):
        ControlledEnv(BareEnv())
    breakers = ControlledEnv(ToyEnv()).breakers
    env = ControlledEnv(BareEnv(), breakers=breakers)  # no schema: level 0 is silent
    env.reset()
    assert env.step([0.1, 0.1])[4]["breakers"]["source"] == "policy"
    env = ControlledEnv(BareEnv(), breakers=breakers, schema=SCHEMA, state=lambda o, i: STATE)
    env.reset()
    assert env.step([0.1, 0.1])[4]["breakers"]["source"] == "policy"


def test_gymnasium_is_loaded_only_for_the_wrapper() -> None:
    code = (
        "import sys, wmrt.control as c; assert 'gymnasium' not in sys.modules; "
        "assert 'torch' not in sys.modules; c.ControlledEnv; assert 'gymnasium' in sys.modules; "
        "import pytest; pytest.raises(AttributeError, getattr, c, 'Nothing')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Gymnasium's own contract


class DictEnv(ToyEnv):
    """Its observation is a Dict and is the state, but for what no array can say."""

    observation_space = spaces.Dict(
        {
            "speed": spaces.Box(-1e6, 1e6, (1,), np.float32),
            "pose": spaces.Box(-10.0, 10.0, (3,), np.float32),
            "wet": spaces.Discrete(2),
        }
    )

    def _obs(self) -> Any:
        pose = np.float32(STATE["pose"])
        return {"speed": np.float32([self.speed]), "pose": pose, "wet": np.int64(0)}

    def _info(self) -> dict[str, Any]:
        return {"other": 1}


@pytest.fixture
def registered() -> Iterator[list[str]]:
    """Ids of environments without and with the wrapper, gone after the test."""
    ids = {"wmrt-test/Toy-v0": "ToyEnv", "wmrt-test/Dict-v0": "DictEnv"}
    for name, kind in ids.items():
        gymnasium.register(name, entry_point=f"{__name__}:{kind}")
    wrapped = "wmrt-test/Wrapped-v0"
    wrappers = (ControlledEnv.wrapper_spec(),)
    gymnasium.register(wrapped, f"{__name__}:ToyEnv", additional_wrappers=wrappers)
    yield [*ids, wrapped]
    for name in (*ids, wrapped):
        del gymnasium.registry[name]


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version:UserWarning")
def test_gymnasiums_checker_finds_nothing(registered: list[str]) -> None:
    for name in registered[:2]:
        env = ControlledEnv(gymnasium.make(name))
        check_env(env)
        assert env.observation_space == env.unwrapped.observation_space
        env.close()


def flat(obs: Any, info: dict[str, Any]) -> Any:
    return {"speed": obs["speed"][0], "pose": obs["pose"], "wet": obs["wet"]}


def test_a_dict_observation_is_the_state_where_info_has_none() -> None:
    env = ControlledEnv(DictEnv(), state=flat)
    env.reset(seed=1)
    obs, _, _, _, info = env.step([0.1, 0.1])
    assert info["breakers"]["source"] == "policy" and info["other"] == 1
    assert set(obs) == {"speed", "pose", "wet"}
    env = ControlledEnv(DictEnv())  # speed is an array of one there, not a number
    env.reset(seed=1)
    assert env.step([0.1, 0.1])[4]["breakers"]["tripped"] == (0,)


def test_it_is_made_again_from_its_spec(registered: list[str]) -> None:
    made = gymnasium.make(registered[2])
    assert isinstance(made, ControlledEnv)
    for env in (ControlledEnv(gymnasium.make(registered[0])), made):
        assert env.spec is not None
        spec = gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())
        assert spec.additional_wrappers == (ControlledEnv.wrapper_spec(),)
        again = gymnasium.make(spec)
        assert isinstance(again, ControlledEnv) and again.breakers is not env.breakers


def test_what_is_made_again_has_breakers_of_its_own(registered: list[str]) -> None:
    tight = Breakers(limits(range_tolerance=0.01), robot="one")
    first = ControlledEnv(gymnasium.make(registered[1]), breakers=tight, state=flat)
    assert first.breakers is tight and first.spec is not None
    tight.estop()
    second, third = (gymnasium.make(first.spec) for _ in range(2))
    for env in (second, third):
        assert isinstance(env, ControlledEnv) and env.breakers.limits == tight.limits
        env.reset(seed=1)
        assert env.step([0.1, 0.1])[4]["breakers"]["state"] == "closed"
    assert isinstance(second, ControlledEnv) and isinstance(third, ControlledEnv)
    assert len({id(env.breakers) for env in (first, second, third)}) == 3
    with pytest.raises(SafetyError, match="limits must be left out where breakers are given"):
        ControlledEnv(ToyEnv(), breakers=tight, limits=tight.limits)


@pytest.mark.parametrize(
    "action",
    [
        np.float64([np.nan, 0.0]),
        np.float32([0.0, -np.inf]),
        np.array(["0.1", "0.1"]),
        np.array([True, True]),
        np.array([0.1, 0.1], object),
        np.array([0.1 + 0j, 0.1]),
        np.zeros((2, 1), np.float32),
        np.zeros((), np.float32),
        np.zeros(3, np.float32),
        [[0.1], [0.1, 0.1]],
        {"steering": 0.1, "acceleration": 0.1},
        10**400,
        object(),
    ],
)
def test_what_is_no_action_never_reaches_the_environment(action: Any) -> None:
    toy = ToyEnv()
    env = ControlledEnv(toy)
    env.reset(seed=1)
    assert env.step(action)[4]["breakers"]["tripped"] == (1,)
    (sent,) = toy.actions
    assert sent.dtype == np.float32 and sent.shape == (2,) and sent.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.longdouble, np.int8])
def test_any_kind_of_number_reaches_it_as_float32(dtype: Any) -> None:
    toy = ToyEnv()
    env = ControlledEnv(toy)
    env.reset(seed=1)
    env.step(np.array([0.25, 0.0], dtype))
    assert toy.actions[0].dtype == np.float32
    assert toy.actions[0].tolist() == [float(dtype(0.25)), 0.0]


# drive


def test_drive_is_one_episode() -> None:
    toy = ToyEnv()
    policy = FakePolicy(lambda s, p: answer(p + np.float32(0.01)))
    controller = simulated(policy)
    steps = list(drive(toy, controller, seed=3))
    assert len(steps) == 10 and policy.resets == 1
    assert [s.action.tolist() for s in steps] == [a.tolist() for a in toy.actions]
    assert steps[-1].truncated and not any(s.truncated for s in steps[:-1])
    assert [s.outcome.step for s in steps if s.outcome] == list(range(1, 11))
    assert steps[0].state["speed"] == policy.seen[0][0]["speed"]
    assert steps[4].reward == steps[4].info["state"]["speed"] == steps[5].state["speed"]
    again = list(drive(toy, simulated(policy), seed=3))
    assert [s.reward for s in again] == [s.reward for s in steps]
    assert len(list(drive(toy, controller, seed=3, max_steps=4))) == 4


def test_drive_takes_the_state_from_where_it_is_told() -> None:
    steps = list(
        drive(BareEnv(), simulated(constant(0, 0)), 0, state=lambda o, i: STATE, max_steps=2)
    )
    assert [s.outcome.source for s in steps if s.outcome] == ["policy"] * 2
    steps = list(drive(BareEnv(), simulated(constant(0, 0)), 0, max_steps=2))
    assert [s.outcome.source for s in steps if s.outcome] == ["fallback"] * 2


def test_drive_refuses_the_machines_clock() -> None:
    with pytest.raises(UsageError, match="clock=StepClock"):
        next(drive(ToyEnv(), Controller(constant(0.0, 0.0)), seed=0))


# predict


def test_predict_on_one_environment() -> None:
    policy = constant(0.25, 0.25)
    model = PredictPolicy(simulated(policy))
    action, state = model.predict(STATE, state="mine", episode_start=True)
    assert (action.tolist(), action.shape, state) == ([0.25, 0.25], (2,), "mine")
    assert policy.resets == 1
    assert model.predict(STATE, deterministic=False)[0].shape == (2,)
    assert policy.resets == 1


def test_predict_in_the_shape_of_a_vec_env() -> None:
    policy = constant(0.25, 0.25)
    model = PredictPolicy(
        simulated(policy), state=lambda obs: STATE | {"speed": float(obs["v"][0])}
    )
    action, state = model.predict({"v": np.float32([[30.0]])}, None, np.array([True]), True)
    assert (action.tolist(), action.dtype, state) == ([[0.25, 0.25]], np.float32, None)
    assert policy.seen[0][0]["speed"] == 30.0
    model.predict({"v": np.float32([[31.0]])}, None, np.array([False]))
    assert policy.resets == 1
    model = PredictPolicy(simulated(policy), state=lambda obs: STATE | {"speed": float(obs[0])})
    assert model.predict(np.float32([[30.0]]), episode_start=np.array([False]))[0].shape == (1, 2)


def test_predict_drives_one_robot() -> None:
    model = PredictPolicy(simulated(constant(0.0, 0.0)))
    with pytest.raises(UsageError, match="3 environments; a controller drives one robot"):
        model.predict(STATE, None, np.zeros(3, bool))
