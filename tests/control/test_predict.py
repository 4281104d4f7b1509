"""Many robots in the shape of a Stable-Baselines3 model; one robot is in test_gym.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.control.support import STATE, constant, simulated
from tests.control.vector import toys
from tests.control.vector.toys import expected, policy_of
from wmrt.control import PredictPolicy
from wmrt.core.errors import SafetyError, UsageError


def canary(obs: Any) -> dict[str, Any]:
    """The state from the observation alone, which is all that `predict` gets."""
    env, episode, step = obs["where"].tolist()
    return {"env": env, "episode": episode, "step": step, "speed": obs["speed"][0]}


def test_an_evaluation_loop() -> None:
    """As Stable-Baselines3's ``evaluate_policy`` runs it: resets come within the step."""
    envs = toys.sync(4, AutoresetMode.SAME_STEP)
    controllers = toys.controllers(4)
    model = PredictPolicy(controllers, canary)
    observations = envs.reset()[0]
    states, starts = None, np.ones(4, bool)
    for _ in range(30):
        actions, states = model.predict(
            observations, state=states, episode_start=starts, deterministic=True
        )
        assert actions.shape == (4, 2) and actions.dtype == np.float32 and states is None
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        assert rewards.tolist() == [1.0] * 4  # what each policy counted since its own reset
        starts = terminated | truncated
    for index, controller in enumerate(controllers):
        want = expected(index, 30)
        assert policy_of(controller).seen == (want[:-1] if want[-1] == "reset" else want)


def test_without_episode_starts_memory_goes_on() -> None:
    controllers = toys.controllers(2)
    model = PredictPolicy(controllers, canary)
    obs = toys.sync(2, AutoresetMode.SAME_STEP).reset()[0]
    first, _ = model.predict(obs)
    second, _ = model.predict(obs, episode_start=[False, True])
    third, _ = model.predict(obs, episode_start=True)
    counts = [np.rint(actions[:, 0] / toys.COUNT).tolist() for actions in (first, second, third)]
    assert counts == [[1, 1], [2, 1], [1, 1]]


def test_a_batch_of_one() -> None:
    obs = {"where": np.float32([[0, 1, 0]]), "speed": np.float32([[20.0]])}
    single = {key: value[0] for key, value in obs.items()}
    for batched, given, starts, shape in (
        (True, obs, None, (1, 2)),
        (True, obs, True, (1, 2)),
        (None, obs, [True], (1, 2)),
        (False, single, [True], (2,)),
        (None, single, True, (2,)),
        (None, single, None, (2,)),
    ):
        model = PredictPolicy(toys.controllers(1), canary, batched=batched)
        assert model.predict(given, episode_start=starts)[0].shape == shape
        assert model.controllers[0].stats()["trips"]["validity"] == 0


def test_observations_that_are_states() -> None:
    model = PredictPolicy([simulated(constant(0.1 * n, 0.0)) for n in range(3)])
    actions, _ = model.predict([STATE, STATE | {"speed": None}, STATE])
    assert actions[:, 0].tolist() == [0.0, 0.0, np.float32(0.2)]  # the middle one: fallback
    arrays = {name: [value] * 3 for name, value in STATE.items()}
    assert model.predict(arrays)[0].shape == (3, 2)


def test_another_number_of_robots_is_refused_before_any_acts() -> None:
    controllers = toys.controllers(2)
    model = PredictPolicy(controllers, canary)
    obs = toys.sync(2, AutoresetMode.SAME_STEP).reset()[0]
    three = toys.sync(3, AutoresetMode.SAME_STEP).reset()[0]
    with pytest.raises(UsageError, match="for 3 environments; a controller drives one robot, and"):
        model.predict(three)
    with pytest.raises(UsageError, match="an observation for 2 and 3 environments"):
        model.predict({"where": three["where"], "speed": obs["speed"]})
    with pytest.raises(UsageError, match="an observation for 0 environments"):
        model.predict(5.0)
    for starts in ([True], [True] * 3, [[True, True]]):
        with pytest.raises(UsageError, match=r"episode_start for \d environments"):
            model.predict(obs, episode_start=starts)
    with pytest.raises(KeyError):
        model.predict({"where": obs["where"]})  # the mapping of the second fails as the first's
    assert all(policy_of(controller).seen == [] for controller in controllers)


def test_arguments() -> None:
    one, two = toys.controllers(2)
    with pytest.raises(SafetyError, match="share their model"):
        PredictPolicy([one, one])
    for batched in (False, 1, "yes"):
        with pytest.raises(SafetyError, match="batched must be True with several controllers"):
            PredictPolicy([one, two], batched=batched)  # type: ignore[arg-type]
    with pytest.raises(SafetyError, match="controllers must be a sequence of Controller"):
        PredictPolicy([])
