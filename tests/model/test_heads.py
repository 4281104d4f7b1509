"""Heads: decoding actions, coding the change of a state, rewards and categories."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.model.networks import build, schemas, small_schema, stream
from wmrt.model.config import preset
from wmrt.model.heads import ActionHead, DynamicsHead, Prediction
from wmrt.model.linear import Linear
from wmrt.model.schema import StateSchema
from wmrt.model.twohot import symexp, symlog

EPS = torch.finfo(torch.float32).eps
CONFIG = preset("tiny")


def dynamics(schema: StateSchema, seed: int) -> DynamicsHead:
    torch.manual_seed(seed)
    return DynamicsHead(schema, CONFIG).eval()


def certain(head: DynamicsHead, change: Tensor) -> Prediction:
    """A prediction that is sure of these two-hot changes and of nothing else."""
    shape = change.shape[:-2]
    return Prediction(
        change.log(),
        torch.full((*shape, head.numeric), -9.0),
        torch.zeros(*shape, sum(head.category_sizes)),
        torch.zeros(*shape, head.reward_bins),
        torch.zeros(shape),
    )


# ---- actions ----


def test_action_head_shapes_and_range(seed: int) -> None:
    torch.manual_seed(seed)
    head = ActionHead(CONFIG, 3)
    with torch.no_grad():
        logits = head(5 * torch.randn(4, 6, CONFIG.d_model))
        chunk = head.decode(logits)
    assert logits.shape == (4, 6, CONFIG.chunk, 3, CONFIG.action_bins)
    assert chunk.shape == (4, 6, CONFIG.chunk, 3)
    assert float(chunk.abs().max()) <= 1 + 4 * EPS
    assert {n for n, m in head.named_modules() if isinstance(m, Linear)} == {"hidden", "out"}


def test_logits_are_ordered_by_step_then_dimension_then_bin(seed: int) -> None:
    torch.manual_seed(seed)
    head = ActionHead(CONFIG, 2)
    bins, step, dim, peak = CONFIG.action_bins, 2, 1, 40
    with torch.no_grad():
        for p in head.parameters():
            p.zero_()
        head.hidden.weight[0, 0] = 10.0
        assert head.out.weight is not None
        head.out.weight[(step * 2 + dim) * bins + peak, 0] = 10.0
        logits = head(torch.eye(CONFIG.d_model)[0])
        chunk = head.decode(logits)
    assert int(logits.flatten().argmax()) == (step * 2 + dim) * bins + peak
    assert abs(float(chunk[step, dim]) - float(head.centers[peak])) < 1e-4


# ---- next state ----


def test_a_change_is_coded_and_decoded_back(seed: int) -> None:
    head, generator = dynamics(small_schema(), seed), torch.Generator().manual_seed(seed)
    head.delta_scale.copy_(torch.tensor([0.3, 2.0]))
    head.delta_limit.copy_(symlog(torch.tensor([12.0, 50.0]) / head.delta_scale))
    now = torch.rand(200, 2, generator=generator) * torch.tensor([40.0, 100.0])
    change = torch.randn(200, 2, generator=generator) * torch.tensor([1.0, 10.0])
    following = (now + change).clamp(head.low, head.high)
    known = torch.ones(200, 2, dtype=torch.bool)
    target = head.change_target(now, known, following)
    assert target.shape == (200, 2, CONFIG.state_bins)
    torch.testing.assert_close(target.sum(-1), torch.ones(200, 2), rtol=0, atol=4 * EPS)
    decoded, will_know = head.decode_state(certain(head, target), now, known)
    # symexp multiplies an error of the bins' eps by e^limit; that is what float32 leaves
    spread = head.delta_scale * head.delta_limit.exp() * head.delta_limit
    assert bool(((decoded - following).abs() <= 32 * EPS * (spread + head.high)).all())
    assert bool(will_know.all())


def test_no_change_has_a_bin_of_its_own(seed: int) -> None:
    head = dynamics(small_schema(), seed)
    now = torch.tensor([[3.25, 71.5]])
    known = torch.ones(1, 2, dtype=torch.bool)
    target = head.change_target(now, known, now)
    middle = torch.zeros(CONFIG.state_bins)
    middle[CONFIG.state_bins // 2] = 1.0
    assert torch.equal(target[0, 0], middle) and torch.equal(target[0, 1], middle)
    decoded, _ = head.decode_state(certain(head, target), now, known)
    assert torch.equal(decoded, now)


def test_an_unknown_value_starts_from_its_fill(seed: int) -> None:
    head = dynamics(small_schema(), seed)
    head.fill.copy_(torch.tensor([17.0, 42.0]))
    known = torch.tensor([[False, True], [True, False]])
    now = torch.tensor([[0.0, 10.0], [5.0, 0.0]])
    following = torch.tensor([[18.0, 11.0], [6.0, 43.0]])
    target = head.change_target(now, known, following)
    assert torch.equal(target[0, 0], target[1, 1])  # both are fill + 1
    decoded, _ = head.decode_state(certain(head, target), now, known)
    torch.testing.assert_close(decoded, following, rtol=1e-5, atol=1e-5)


def test_decoded_values_stay_in_the_schemas_range_and_large_changes_are_clamped(seed: int) -> None:
    head = dynamics(small_schema(), seed)
    known = torch.ones(1, 2, dtype=torch.bool)
    for start, end in (([39.0, 99.0], [400.0, 400.0]), ([1.0, 1.0], [-400.0, -400.0])):
        now = torch.tensor([start])
        target = head.change_target(now, known, torch.tensor([end]))
        side = -1 if end[0] > 0 else 0
        assert bool((target[..., side] == 1).all())
        decoded, _ = head.decode_state(certain(head, target), now, known)
        assert torch.equal(decoded[0], head.high if end[0] > 0 else head.low)


def test_missing_is_decided_by_its_logit(seed: int) -> None:
    head = dynamics(small_schema(), seed)
    now, known = torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool)
    sure = certain(head, head.change_target(now, known, now))
    prediction = replace(sure, missing=torch.tensor([[0.1, -0.1]]))
    assert head.decode_state(prediction, now, known)[1].tolist() == [[False, True]]


def test_changes_are_finer_near_zero(seed: int) -> None:
    head = dynamics(small_schema(), seed)
    step = symexp(head.bins * head.delta_limit[0]).diff()
    middle = len(step) // 2
    assert bool((step[middle:].diff() > 0).all()) and bool((step[:middle].diff() < 0).all())


# ---- reward, categories ----


def test_reward_is_coded_and_decoded_back(seed: int) -> None:
    head = dynamics(small_schema(), seed)
    head.reward_scale.fill_(0.1)
    reward = 0.2 * torch.rand(50, generator=torch.Generator().manual_seed(seed)) - 0.1
    target = head.reward_target(reward)
    prediction = replace(certain(head, torch.ones(50, 2, 21)), reward=target.log())
    torch.testing.assert_close(head.decode_reward(prediction), reward, rtol=0, atol=1e-6)
    beyond = head.reward_target(torch.tensor([5.0, -5.0]))
    assert float(beyond[0, -1]) == 1.0 and float(beyond[1, 0]) == 1.0


def test_categories_are_split_in_column_order(seed: int) -> None:
    head = dynamics(small_schema(), seed)
    assert head.category_sizes == [4, 3]  # unknown and three lanes; unknown, false, true
    logits = torch.zeros(2, 7)
    logits[0, 2], logits[0, 4] = 1.0, 1.0
    logits[1, 0], logits[1, 6] = 1.0, 1.0
    prediction = replace(certain(head, torch.ones(2, 2, 21)), category=logits)
    assert head.decode_category(prediction).tolist() == [[2, 0], [0, 2]]


@pytest.mark.parametrize("name", list(schemas()))
def test_every_kind_of_schema_has_its_outputs(name: str, seed: int) -> None:
    schema = schemas()[name]
    network = build(seed, schema)
    codes, values, previous = stream(network, 2, 3, seed)
    numeric = [c for c in schema.columns if c.kind == "numeric"]
    sizes = [c.size for c in schema.columns if c.kind != "numeric"]
    with torch.no_grad():
        hidden, _ = network(codes, values, previous)
        p = network.predict(hidden, previous)
        following, will_know = network.dynamics.decode_state(p, *network.split(codes, values))
    assert p.change.shape == (2, 3, len(numeric), CONFIG.state_bins)
    assert p.category.shape == (2, 3, sum(sizes)) and p.proceed.shape == (2, 3)
    assert following.shape == will_know.shape == (2, 3, len(numeric))
    low = np.array([c.low for c in numeric], np.float32)
    high = np.array([c.high for c in numeric], np.float32)
    assert np.all((following.numpy() >= low) & (following.numpy() <= high))
    category = network.dynamics.decode_category(p)
    assert category.shape == (2, 3, len(sizes))


def test_a_fresh_head_has_every_tensor_a_checkpoint_stores() -> None:
    names = set(DynamicsHead(small_schema(), CONFIG).state_dict())
    assert {"delta_scale", "delta_limit", "fill", "reward_scale"} <= names
    assert not {"bins", "low", "high"} & names  # they follow from schema and configuration
