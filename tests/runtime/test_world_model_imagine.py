"""Imagination: what stepping by hand gives, nothing advanced, and what cannot be imagined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.runtime.models import drive, model_of, same, states
from wmrt.core.errors import UsageError
from wmrt.model.schema import UNKNOWN


@pytest.mark.parametrize("selector", ["learned", "full", "recent"])
def test_imagining_equals_stepping_by_hand(selector: str, seed: int) -> None:
    model = model_of(seed, selector=selector, recipe="bf16", executor="eager")
    drive(model, states(model.schema, 25, seed))
    rng = np.random.default_rng(seed)
    plan = rng.uniform(-1, 1, (6, 2)).astype(np.float32)
    rollout = model.imagine(plan)
    network, schema, hand = model.network, model.schema, model.fork()
    hidden = hand.session.output.hidden  # type: ignore[union-attr]
    codes, values = hand.session.codes, hand.session.values
    with torch.inference_mode():
        for t, action in enumerate(torch.from_numpy(plan)):
            p = network.predict(hidden, action[None])
            following, known = network.dynamics.decode_state(p, *network.split(codes, values))
            q = np.full(len(schema.columns), UNKNOWN)
            exact = schema.quantize_array(following.numpy())[0]
            q[:2] = np.where(known[0].numpy(), exact, UNKNOWN)
            category = network.dynamics.decode_category(p)[0].numpy()
            q[2:] = np.where(category > 0, category, UNKNOWN)
            assert rollout.q[0, t].tolist() == q.tolist()
            assert abs(rollout.reward[0, t] - float(network.dynamics.decode_reward(p))) < 1e-6
            assert abs(rollout.proceed[0, t] - float(p.proceed.sigmoid())) < 1e-6
            imagined = schema.decode(q)
            hidden = hand.session.step(*schema.encode_q(q), action.tolist()).hidden
            codes, values = hand.session.codes, hand.session.values
            assert schema.encode(imagined).codes.tolist() == codes[0].tolist()


def test_sequences_imagined_together_are_those_imagined_alone(seed: int) -> None:
    model = model_of(seed)
    drive(model, states(model.schema, 20, seed))
    plans = np.random.default_rng(seed).uniform(-1, 1, (3, 4, 2))
    together = model.imagine(plans)
    assert together.q.shape == (3, 4, 4) and together.reward.shape == (3, 4)
    # Batched products round differently, and a difference may tip a decoded digit: rewards only.
    for i, plan in enumerate(plans):
        np.testing.assert_allclose(together.reward[i, 0], model.imagine(plan).reward[0, 0], 0, 1e-5)


def test_imagining_leaves_the_session_alone(seed: int) -> None:
    model, reference = model_of(seed), model_of(seed)
    stream = states(model.schema, 30, seed)
    drive(model, stream[:20])
    drive(reference, stream[:20])
    a, b = model.imagine(np.ones((5, 2))), model.imagine(np.ones((5, 2)))
    assert np.array_equal(a.q, b.q) and np.array_equal(a.reward, b.reward)
    for x, y in zip(drive(model, stream[20:]), drive(reference, stream[20:]), strict=True):
        assert same(x, y)


def test_the_first_imagined_state_is_the_predicted_one(seed: int) -> None:
    model = model_of(seed)
    for state in states(model.schema, 5, seed):
        step = model.step(state)
        rollout = model.imagine(step.action[None])
        assert model.schema.decode(rollout.q[0, 0]) == step.predicted


def test_imagining_needs_a_state(seed: int) -> None:
    model = model_of(seed)
    with pytest.raises(UsageError, match="call step first"):
        model.imagine(np.zeros((3, 2)))
    drive(model, states(model.schema, 1, seed))
    model.imagine(np.zeros((3, 2)))
    model.reset()
    with pytest.raises(UsageError, match="call step first"):
        model.imagine(np.zeros((3, 2)))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (np.zeros(2), r"actions of shape \[2\]"),
        (np.zeros((0, 2)), "none of them 0"),
        (np.zeros((0, 3, 2)), "none of them 0"),
        (np.zeros((3, 1)), "with A=2"),
        (np.zeros((1, 1, 3, 2)), "expected"),
        ([[0.0, 0.0], [0.0]], "no array of numbers"),
        (["up", "down"], "no array of numbers"),
        ([[float("nan"), 0.0]], "finite"),
        ([[2.0, 0.0]], r"in \[-1, 1\]"),
    ],
)
def test_actions_that_cannot_be_imagined_are_refused(plan: Any, said: str, seed: int) -> None:
    model = model_of(seed)
    drive(model, states(model.schema, 1, seed))
    with pytest.raises(UsageError, match=said):
        model.imagine(plan)
