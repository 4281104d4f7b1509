"""Session: static buffers, and the rules of sampling and exploration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.runtime.models import drive, same, states, tiny
from wmrt.core.errors import UsageError
from wmrt.runtime import Session, WorldModel


def model_of(weights: int, /, **options: Any) -> WorldModel:
    return WorldModel.from_checkpoint(tiny(weights), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 0.5}, "only with sample=True"),
        ({"temperature": 0.0, "sample": True}, "must be positive"),
        ({"temperature": -1.0, "sample": True}, "must be positive"),
        ({"temperature": float("nan"), "sample": True}, "must be positive"),
        ({"action_noise": -0.1}, "must not be negative"),
        ({"seeds": 3}, "unknown option seeds; a session has seed, action_noise, sample, temp"),
        ({"seed": "x"}, "seed='x': expected a whole number"),
        ({"seed": True}, "seed=True: expected a whole number"),
        ({"seed": 2**64}, "seed=18446744073709551616: a generator takes 64 bits"),
        ({"action_noise": None}, "action_noise=None: expected a number"),
        ({"sample": 1}, "sample=1: expected True or False"),
        ({"action_noise": float("nan")}, "must not be negative"),
    ],
)
def test_options_that_cannot_be_meant(options: dict[str, Any], said: str, seed: int) -> None:
    network = model_of(seed).network
    with pytest.raises(UsageError, match=said):
        Session(network, **options)
    with pytest.raises(UsageError, match=said):
        model_of(seed, **options)


def test_every_buffer_is_allocated_once(seed: int) -> None:
    model = model_of(seed)
    session = model.session
    tensors = [*session.ring.tensors().values(), session.codes, session.values, session.previous]
    where = [t.data_ptr() for t in tensors]
    drive(model, states(model.schema, 20, seed))
    model.restore(model.snapshot())
    model.reset()
    now = [*session.ring.tensors().values(), session.codes, session.values, session.previous]
    assert [t.data_ptr() for t in now] == where
    assert all(not bool(t.any()) for t in session.ring.tensors().values())


def test_without_options_nothing_is_random(seed: int) -> None:
    a, b = model_of(seed, seed=1), model_of(seed, seed=2)
    stream = states(a.schema, 10, seed)
    assert all(same(x, y) for x, y in zip(drive(a, stream), drive(b, stream), strict=True))


def test_exploration_noise_moves_the_action_and_not_the_chunk(seed: int) -> None:
    model, plain = model_of(seed, action_noise=0.2, seed=seed), model_of(seed)
    state = states(model.schema, 1, seed)[0]
    moved = []
    for _ in range(300):
        with torch.inference_mode():
            model.session.ring.reset()  # the generator goes on
        plain.reset()
        noisy, clean = model.step(state, [0, 0]), plain.step(state, [0, 0])
        assert np.array_equal(noisy.chunk, clean.chunk)
        assert np.abs(noisy.action).max() <= 1.0
        moved.append(noisy.action - clean.action)
    inside = np.abs(clean.action) < 0.2  # further out the box cuts the noise
    assert np.ptp(moved) > 0
    if inside.any():
        # the spread of 300 normals is within a quarter of 0.2 but once in 10^9
        assert abs(np.std(np.array(moved)[:, inside], axis=0) - 0.2).max() < 0.05


def test_noise_and_samples_are_functions_of_the_seed(seed: int) -> None:
    for options in ({"action_noise": 0.1}, {"sample": True, "temperature": 2.0}):
        a, b, c = (model_of(seed, seed=s, **options) for s in (5, 5, 6))
        stream = states(a.schema, 10, seed)
        first, second, third = drive(a, stream), drive(b, stream), drive(c, stream)
        assert all(same(x, y) for x, y in zip(first, second, strict=True))
        assert not all(same(x, y) for x, y in zip(first, third, strict=True))
        a.reset()  # the generator starts again
        assert all(same(x, y) for x, y in zip(first, drive(a, stream), strict=True))


def test_sampling_draws_bins_as_often_as_they_are_probable(seed: int) -> None:
    model = model_of(seed, sample=True, seed=seed)
    session, head = model.session, model.network.action_head
    state = states(model.schema, 1, seed)[0]
    model.step(state, [0, 0])
    assert session.output is not None
    logits = session.output.logits
    bins = head.centers
    probability = logits[0, 0].softmax(-1).numpy()
    with torch.inference_mode():
        draws = torch.cat([session.choice.action(logits, session.output.chunk) for _ in range(800)])
    for dim in range(2):
        index = (draws[:, dim, None] == bins).int().argmax(-1)
        assert torch.equal(bins[index], draws[:, dim])
        share = np.bincount(index.numpy(), minlength=len(bins)) / 800
        # Six standard deviations sqrt(p(1-p)/800), and five draws for the bins whose p is so small
        # that a normal bound does not hold.
        bound = 6 * np.sqrt(probability[dim] * (1 - probability[dim]) / 800) + 5 / 800
        assert np.all(np.abs(share - probability[dim]) <= bound)


def test_a_low_temperature_takes_the_most_probable_bin(seed: int) -> None:
    model = model_of(seed, sample=True, temperature=1e-3)
    for state in states(model.schema, 5, seed):
        step = model.step(state)
        assert model.session.output is not None
        best = model.session.output.logits[0, 0].argmax(-1)
        top = model.session.output.logits[0, 0].topk(2).values
        clear = (top[:, 0] - top[:, 1]).numpy() > 0.05
        centers = model.network.action_head.centers[best].numpy()
        assert np.array_equal(step.action[clear], centers[clear])
