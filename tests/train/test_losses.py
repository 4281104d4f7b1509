"""Training losses: mixtures of chunks, what is masked, and what a perfect prediction costs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.model.networks import build, schemas, stream
from tests.train.toys import ACTIONS, CONFIG, SCHEMA, episodes, network_for
from wmrt.model.heads import Prediction
from wmrt.model.network import Network, Sequence
from wmrt.train.dataset import Batch, Recording, window_batch
from wmrt.train.losses import (
    LossWeights,
    action_loss,
    chunk_target,
    compute,
    distill_loss,
    dynamics_losses,
)


def toy_batch(steps: int = 12) -> tuple[Network, Batch]:
    made = episodes(5, 30)
    network = network_for(made, 0).eval()
    data = Recording.build(made, network.schema)
    start = torch.tensor([0, 5, 25, 3, 22])  # rows 2 and 4 run past the end; 4 ends in a crash
    return network, window_batch(data, torch.arange(5), start, steps)


# ---- actions ----


def test_chunk_target_is_the_weighted_mixture(seed: int) -> None:
    rng = np.random.default_rng(seed)
    bins = 16
    chunks = rng.uniform(-1, 1, (2, 3, 4, 2)).astype(np.float32)  # [B, M, H, A]
    weights = rng.dirichlet(np.ones(3), 2).astype(np.float32)
    target = chunk_target(torch.from_numpy(chunks), torch.from_numpy(weights), bins).numpy()
    assert target.shape == (2, 4, 2, bins)
    np.testing.assert_allclose(target.sum(-1), 1, atol=1e-5)
    expected = np.zeros_like(target)
    for b, m, h, a in np.ndindex(2, 3, 4, 2):
        position = (chunks[b, m, h, a] + 1) / 2 * (bins - 1)
        low = min(int(position), bins - 2)
        expected[b, h, a, low] += weights[b, m] * (1 - (position - low))
        expected[b, h, a, low + 1] += weights[b, m] * (position - low)
    np.testing.assert_allclose(target, expected, atol=1e-5)


def test_action_loss_is_zero_for_the_target_itself_and_weighs_now_and_later(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = torch.rand(2, 5, 4, 2, 8, generator=generator).softmax(-1)
    mask = torch.ones(2, 5)
    assert abs(float(action_loss(target.log(), target, mask))) < 1e-6
    logits = torch.randn(2, 5, 4, 2, 8, generator=generator)
    kl = (target * (target.log() - logits.log_softmax(-1))).sum(-1).mean(-1)
    expected = kl[..., 0].mean() + 0.5 * kl[..., 1:].mean()
    torch.testing.assert_close(action_loss(logits, target, mask), expected)
    mask[0] = 0
    half = action_loss(logits, target, mask)
    torch.testing.assert_close(half, kl[1, :, 0].mean() + 0.5 * kl[1, :, 1:].mean())
    assert float(action_loss(logits, target, torch.zeros(2, 5))) == 0.0


# ---- dynamics ----


def perfect(network: Network, batch: Batch) -> Prediction:
    """Logits of the very targets."""
    head, big = network.dynamics, 60.0
    values, known = network.split(batch.codes[:, :-1], batch.values[:, :-1])
    following, _ = network.split(batch.true_codes[:, 1:], batch.true_values[:, 1:])
    _, seen = network.split(batch.codes[:, 1:], batch.values[:, 1:])
    target = head.change_target(values, known, following)
    category = [torch.nn.functional.one_hot(batch.codes[:, 1:, i], n) * big
                for i, n in zip((2, 3), head.category_sizes, strict=True)]  # fmt: skip
    return Prediction(
        target.clamp(min=1e-30).log(),
        torch.where(seen, -big, big),
        torch.cat(category, -1).float(),
        head.reward_target(batch.reward).clamp(min=1e-30).log(),
        torch.where(batch.ended > 0, -big, big),
    )


def losses_of(network: Network, batch: Batch, prediction: Prediction) -> dict[str, float]:
    class Told(Network):
        def predict(self, hidden: Tensor, action: Tensor) -> Prediction:
            return prediction

    network.__class__ = Told
    try:
        return {k: float(v) for k, v in dynamics_losses(network, torch.empty(0), batch).items()}
    finally:
        network.__class__ = Network


def test_a_perfect_prediction_costs_only_its_targets_entropy() -> None:
    network, batch = toy_batch()
    losses = losses_of(network, batch, perfect(network, batch))
    assert set(losses) == {"state", "category", "reward", "proceed"}
    assert losses["category"] < 1e-6 and losses["proceed"] < 1e-6
    # two-hot targets have at most log 2 of entropy
    assert 0 < losses["state"] < math.log(2) and 0 < losses["reward"] < math.log(2)


def test_the_step_that_ended_a_drive_and_padding_are_masked_out_of_the_state_losses() -> None:
    network, batch = toy_batch()
    assert float(batch.ended.sum()) == 1 and float(batch.mask.sum()) < batch.mask.numel()
    prediction = perfect(network, batch)
    clean = losses_of(network, batch, prediction)
    dead = (batch.ended > 0) | (batch.mask == 0)
    spoiled = replace(
        prediction,
        change=prediction.change.masked_scatter(
            dead[..., None, None].expand_as(prediction.change), torch.randn(prediction.change.shape)
        ),
        missing=torch.where(dead[..., None], 30.0, prediction.missing),
        category=torch.where(dead[..., None], 0.0, prediction.category),
    )
    assert losses_of(network, batch, spoiled) == clean
    # ... while its reward and its ending count
    row, step = (int(i) for i in (batch.ended > 0).nonzero()[0])
    wrong = prediction.proceed.clone()
    wrong[row, step] = 5.0
    assert losses_of(network, batch, replace(prediction, proceed=wrong))["proceed"] > 1e-3
    wrong = prediction.reward.clone()
    wrong[row, step] = 0.0
    assert losses_of(network, batch, replace(prediction, reward=wrong))["reward"] > clean["reward"]
    padding = torch.where(batch.mask > 0, prediction.proceed, 5.0)
    assert losses_of(network, batch, replace(prediction, proceed=padding)) == clean


def test_an_alive_step_does_count() -> None:
    network, batch = toy_batch()
    prediction = perfect(network, batch)
    clean = losses_of(network, batch, prediction)
    change = prediction.change.clone()
    change[0, 0, 0] = 0.0
    assert losses_of(network, batch, replace(prediction, change=change))["state"] > clean["state"]


def test_a_value_the_recording_does_not_know_teaches_no_change() -> None:
    network, batch = toy_batch()
    codes = batch.codes.clone()
    codes[:, 5, 1] = 0
    values = batch.values.clone()
    values[:, 5, 1] = 0.0
    batch = replace(batch, codes=codes, values=values, true_codes=codes, true_values=values)
    prediction = perfect(network, batch)
    clean = losses_of(network, batch, prediction)
    change = prediction.change.clone()
    change[:, 4, 1] = torch.randn(change[:, 4, 1].shape)
    assert losses_of(network, batch, replace(prediction, change=change)) == clean
    missing = prediction.missing.clone()
    missing[:, 4, 1] = -9.0  # that it will be missing is taught
    assert losses_of(network, batch, replace(prediction, missing=missing))["state"] > clean["state"]


def test_hidden_fields_are_predicted_as_missing_with_their_true_value() -> None:
    network, batch = toy_batch()
    codes, values = batch.codes.clone(), batch.values.clone()
    codes[:, 5, 1], values[:, 5, 1] = 0, 0.0
    hidden = replace(batch, codes=codes, values=values)
    prediction = perfect(network, hidden)
    assert bool((prediction.missing[:, 4, 1] > 0).all())
    clean = losses_of(network, hidden, prediction)
    change = prediction.change.clone()
    change[:, 4, 1] = 0.0
    assert losses_of(network, hidden, replace(prediction, change=change))["state"] > clean["state"]


@pytest.mark.parametrize("name", list(schemas()))
def test_every_kind_of_schema_gives_finite_losses_and_gradients(name: str, seed: int) -> None:
    network = build(seed, schemas()[name], chunk=2).train()
    codes, values, previous = stream(network, 2, 9, seed)
    chunks = torch.rand(2, 8, 3, 2, 2) * 2 - 1
    batch = Batch(codes, values, codes, values, previous[:, :-1], previous[:, 1:], chunks,
                  torch.ones(2, 8, 3) / 3, torch.rand(2, 8) * 0.1, torch.zeros(2, 8),
                  torch.ones(2, 8))  # fmt: skip
    total, parts = compute(network, batch, LossWeights(), torch.Generator().manual_seed(seed))
    total.backward()
    assert all(bool(torch.isfinite(p)) for p in parts.values()), parts
    assert "state" in parts and "action" in parts
    assert ("category" in parts) == bool(network.dynamics.category_sizes)
    for p in network.parameters():
        assert p.grad is None or bool(torch.isfinite(p.grad).all())


# ---- distillation, total ----


def test_distillation_pulls_the_selector_towards_attention(seed: int) -> None:
    network, batch = toy_batch(16)
    optimizer = torch.optim.Adam(network.selector.parameters(), lr=1e-2)
    before = [p.detach().clone() for p in network.blocks.parameters()]
    seen = []
    for _ in range(25):
        _, sequence = network(
            batch.codes[:, :-1], batch.values[:, :-1], batch.previous, keep_attention=True
        )
        loss = distill_loss(sequence, batch.mask, 5, CONFIG.window)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    assert min(seen) >= 0 and seen[-1] < 0.9 * seen[0]
    assert all(torch.equal(a, b) for a, b in zip(before, network.blocks.parameters(), strict=True))
    with torch.no_grad():
        assert float(distill_loss(sequence, torch.zeros_like(batch.mask), 5, CONFIG.window)) == 0.0


def test_distillation_is_over_the_window_that_attention_sees(seed: int) -> None:
    """Against a loop over rows, positions and their visible past, with steps beyond the window."""
    generator = torch.Generator().manual_seed(seed)
    window, steps, rows = 5, 13, 2
    scores = torch.randn(3, steps, steps, generator=generator)
    q, k = (torch.randn(3, heads, steps, 8, generator=generator) for heads in (4, 2))
    index = torch.arange(steps)
    sequence = Sequence(torch.empty(0), scores, index[:, None] - index[None, :], [(q, k)])
    mask = torch.ones(3, steps)
    expected = []
    for b, t in ((b, t) for b in range(rows) for t in range(1, steps)):
        seen = range(max(0, t - window + 1), t + 1)
        keys = k[b, :, seen].repeat_interleave(2, 0)  # 4 heads read 2 keys
        weights = (torch.einsum("hd,hnd->hn", q[b, :, t], keys) / 8**0.5).softmax(-1)
        teacher = weights.mean(0)[:-1] / weights.mean(0)[:-1].sum()
        student = scores[b, t, seen[:-1]].log_softmax(-1)
        expected.append(float((teacher * (teacher.log() - student)).sum()))
    found = float(distill_loss(sequence, mask, rows, window))
    assert math.isclose(found, math.fsum(expected) / len(expected), rel_tol=1e-4)


@pytest.mark.parametrize("selector", ["learned", "full", "recent", "random"])
def test_total_is_the_weighted_sum_and_only_learned_distils(selector: str) -> None:
    made = episodes(5, 30)
    network = network_for(made, 0, CONFIG.with_(selector=selector))
    data = Recording.build(made, network.schema)
    batch = window_batch(data, torch.arange(5), torch.zeros(5, dtype=torch.int64), 10)
    weights = LossWeights(
        state=2.0, category=0.25, reward=3.0, proceed=0.5, action=1.5, distill=4.0
    )
    with torch.no_grad():
        total, parts = compute(network, batch, weights, torch.Generator().manual_seed(0))
    assert ("distill" in parts) == (selector == "learned")
    expected = sum(getattr(weights, k) * float(v) for k, v in parts.items())
    assert math.isclose(float(total), expected, rel_tol=1e-5)
    assert len(ACTIONS) == 1 and len(SCHEMA.columns) == 4
