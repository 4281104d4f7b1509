"""`PredictPolicy` in Stable-Baselines3's own evaluation: `make test-oracles`."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.control.test_predict import canary
from tests.control.vector import toys
from tests.control.vector.toys import CanaryEnv, policy_of
from tests.oracles.live import oracle
from wmrt.control import PredictPolicy

sb3, NAME = oracle("stable_baselines3", "stable-baselines3")
evaluation, _ = oracle("stable_baselines3.common.evaluation", "stable-baselines3")
vec_env, _ = oracle("stable_baselines3.common.vec_env", "stable-baselines3")
pytestmark = pytest.mark.filterwarnings("ignore:Evaluation environment is not wrapped")


def test_the_signature_is_theirs() -> None:
    theirs = inspect.signature(sb3.common.base_class.BaseAlgorithm.predict).parameters
    ours = inspect.signature(PredictPolicy.predict).parameters
    assert [(p.name, p.default, p.kind) for p in ours.values()] == [
        (p.name, p.default, p.kind) for p in theirs.values()
    ], NAME


@pytest.mark.parametrize("count", [1, 2, 4])
def test_their_evaluation(count: int) -> None:
    """Each step of each episode is rewarded when the action is what its own robot's memory says."""
    envs = vec_env.DummyVecEnv([partial(CanaryEnv, index) for index in range(count)])
    controllers = toys.controllers(count)
    model: Any = PredictPolicy(controllers, canary)
    rewards, lengths = evaluation.evaluate_policy(
        model, envs, n_eval_episodes=20, return_episode_rewards=True
    )
    assert len(rewards) == 20 and rewards == [float(length) for length in lengths]
    assert sorted(set(lengths)) == sorted(toys.LENGTHS)
    for controller in controllers:
        seen = [place for place in policy_of(controller).seen if place != "reset"]
        assert seen == sorted(seen) and len({place[0] for place in seen}) == 1


def test_their_shapes() -> None:
    """What their own policy returns for one observation and for a batch is what ours returns."""
    envs = vec_env.DummyVecEnv([partial(CanaryEnv, index) for index in range(3)])
    theirs = sb3.PPO("MultiInputPolicy", envs, n_steps=4, batch_size=4, device="cpu")
    batch = envs.reset()
    single = {key: value[0] for key, value in batch.items()}
    ours: Any = PredictPolicy(toys.controllers(3), canary)
    one: Any = PredictPolicy(toys.controllers(1), canary)
    for mine, observation, starts in (
        (ours, batch, np.ones(3, bool)),
        (ours, batch, None),
        (one, single, None),
    ):
        (action, state), (other, none) = (
            model.predict(observation, episode_start=starts) for model in (mine, theirs)
        )
        assert action.shape == other.shape and action.dtype == other.dtype
        assert state is none is None
