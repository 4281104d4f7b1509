"""Which past slots are read: every selector, gates, unwritten slots, the jump softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from wmrt.model.config import SELECTORS, preset
from wmrt.model.transition import NEG_INF, TransitionSelector, jump_softmax

W, K = 16, 4


def selector_of(kind: str, seed: int, past: int = K) -> TransitionSelector:
    torch.manual_seed(seed)
    selector = TransitionSelector(preset("tiny").with_(selector=kind, past=past, window=W))
    with torch.no_grad():
        selector.age_bias.normal_()
    return selector


def inputs(seed: int, batch: int = 3) -> tuple[Tensor, Tensor]:
    """LSTM output and slot keys."""
    config, generator = preset("tiny"), torch.Generator().manual_seed(seed)
    hidden = torch.randn(batch, config.lstm, generator=generator)
    return hidden, torch.randn(batch, W, config.select_dim, generator=generator)


def ages(step: int, batch: int = 3) -> Tensor:
    """Slot ages at absolute step ``step``: 0 the current slot, -1 not written."""
    age = (step % W - torch.arange(W)) % W
    return torch.where(age <= step, age, -1).expand(batch, W)


def scores_by_hand(
    selector: TransitionSelector, hidden: Tensor, keys: Tensor, age: Tensor
) -> np.ndarray:
    weight, bias = selector.query.weight.double(), selector.query.bias.double()
    query = hidden.double() @ weight.T + bias
    raw = (keys.double() @ query.unsqueeze(-1)).squeeze(-1) / math.sqrt(keys.shape[-1])
    return (raw + selector.age_bias.double()[age.clamp(min=0)]).detach().numpy()


@pytest.mark.parametrize("step", [0, 1, 3, 4, 15, 16, 40])
def test_learned_takes_the_k_best_past_slots_and_their_gates(step: int, seed: int) -> None:
    selector = selector_of("learned", seed)
    hidden, keys = inputs(seed)
    age = ages(step)
    with torch.no_grad():
        chosen = selector.select(hidden, keys, age, None)
    assert chosen.slots.shape == chosen.bias.shape == (3, K)
    scores = scores_by_hand(selector, hidden, keys, age)
    written = min(step, W - 1)
    for row in range(3):
        past = np.nonzero(age[row].numpy() > 0)[0]
        assert len(past) == written
        best = past[np.argsort(-scores[row, past])][:K]
        gates = chosen.bias[row].tolist()
        assert chosen.slots[row, : len(best)].tolist() == best.tolist()
        for slot, gate in zip(best, gates, strict=False):
            expected = -math.log1p(math.exp(-scores[row, slot]))
            assert abs(gate - expected) <= 1e-5 * max(1, abs(expected))
        assert all(gate == NEG_INF for gate in gates[len(best) :])


@pytest.mark.parametrize("kind", SELECTORS)
@pytest.mark.parametrize("step", [0, 2, 15, 33])
def test_no_selector_reads_the_current_or_an_unwritten_slot(
    kind: str, step: int, seed: int
) -> None:
    selector, (hidden, keys), age = selector_of(kind, seed), inputs(seed), ages(step)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        chosen = selector.select(hidden, keys, age, generator)
    count = W - 1 if kind == "full" else K
    assert chosen.slots.shape == (3, count)
    for row in range(3):
        assert len(set(chosen.slots[row].tolist())) == count
        for slot, bias in zip(chosen.slots[row].tolist(), chosen.bias[row].tolist(), strict=True):
            assert (bias == NEG_INF) == (int(age[row, slot]) <= 0)
    readable = int((chosen.bias[0] > NEG_INF).sum())
    assert readable == min(step, count)


def test_recent_takes_the_last_k_without_a_gate(seed: int) -> None:
    hidden, keys = inputs(seed)
    chosen = selector_of("recent", seed).select(hidden, keys, ages(40), None)
    taken = ages(40).gather(1, chosen.slots)
    assert taken.tolist() == [[1, 2, 3, 4]] * 3
    assert chosen.bias.tolist() == [[0.0] * K] * 3


def test_full_takes_every_past_slot_without_a_gate(seed: int) -> None:
    hidden, keys = inputs(seed)
    chosen = selector_of("full", seed).select(hidden, keys, ages(40), None)
    assert ages(40).gather(1, chosen.slots).tolist() == [list(range(1, W))] * 3
    assert not bool(chosen.bias.any())


def test_random_is_a_function_of_its_generator_and_spreads_over_the_past(seed: int) -> None:
    selector, (hidden, keys) = selector_of("random", seed), inputs(seed, 1)

    def draw(number: int, times: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(number)
        return [
            selector.select(hidden, keys, ages(40, 1), generator).slots[0].tolist()
            for _ in range(times)
        ]

    assert draw(seed, 20) == draw(seed, 20)
    assert draw(seed, 20) != draw(seed + 1, 20)
    drawn = draw(seed, 400)
    assert len({tuple(slots) for slots in drawn}) > 50
    counts = np.bincount(np.array(drawn).ravel(), minlength=W)
    assert counts[40 % W] == 0
    # 400 draws of 4 of 15: mean 106.7, standard deviation 8.8; 6 sigma is one run in 10^7
    assert counts[np.arange(W) != 40 % W].min() > 53
    assert counts.max() < 160


def test_random_leaves_the_global_generator_alone(seed: int) -> None:
    selector, (hidden, keys) = selector_of("random", seed), inputs(seed)
    before = torch.random.get_rng_state()
    selector.select(hidden, keys, ages(40), torch.Generator().manual_seed(seed))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("kind", SELECTORS)
def test_no_past_means_no_slots(kind: str, seed: int) -> None:
    if kind == "full":
        return  # `full` has no k; past=0 is set on the other kinds
    selector, (hidden, keys) = selector_of(kind, seed, past=0), inputs(seed)
    chosen = selector.select(hidden, keys, ages(40), torch.Generator().manual_seed(seed))
    assert chosen.slots.shape == (3, 0) and chosen.bias.shape == (3, 0)
    scores, age = torch.randn(2, 9, 9), torch.arange(9)[:, None] - torch.arange(9)
    bias = selector.sequence_bias(scores, age, torch.Generator().manual_seed(seed))
    assert torch.equal(bias, torch.full((9, 9), NEG_INF).fill_diagonal_(0.0).expand(2, 9, 9))


@pytest.mark.parametrize("kind", SELECTORS)
def test_sequence_bias_opens_k_past_slots_within_the_window(kind: str, seed: int) -> None:
    steps, generator = 40, torch.Generator().manual_seed(seed)
    selector = selector_of(kind, seed)
    scores = torch.randn(2, steps, steps, generator=generator)
    age = torch.arange(steps)[:, None] - torch.arange(steps)
    bias = selector.sequence_bias(scores, age, generator)
    assert torch.equal(bias.diagonal(dim1=1, dim2=2), torch.zeros(2, steps))
    opened = bias > NEG_INF
    assert not bool((opened & ((age < 0) | (age >= W))).any())
    count = opened.sum(-1) - 1
    limit = W - 1 if kind == "full" else K
    assert torch.equal(count, torch.arange(steps).clamp(max=limit).expand(2, steps))
    if kind == "learned":
        past = opened & (age > 0)
        expected = torch.nn.functional.logsigmoid(scores)
        assert torch.equal(bias[past], expected[past])
        chosen = scores.masked_fill(~past, math.inf).amin(-1)
        left = scores.masked_fill(opened | (age <= 0) | (age >= W), NEG_INF).amax(-1)
        assert bool((chosen >= left).all())
    else:
        assert not bool(bias[opened].any())


def test_gradients_reach_the_scores_through_the_gate_only(seed: int) -> None:
    scores = torch.randn(1, 12, 12, requires_grad=True)
    age = torch.arange(12)[:, None] - torch.arange(12)
    bias = selector_of("learned", seed).sequence_bias(scores, age)
    bias[bias > NEG_INF].sum().backward()
    gradient = scores.grad
    assert gradient is not None
    used = (bias > NEG_INF) & (age > 0)
    assert torch.equal(gradient != 0, used)


def test_sequence_scores_equal_the_step_scores(seed: int) -> None:
    config, generator = preset("tiny"), torch.Generator().manual_seed(seed)
    selector = selector_of("learned", seed)
    token = torch.randn(2, 10, config.d_model, generator=generator)
    action = torch.randn(2, 10, config.action_embed, generator=generator)
    with torch.no_grad():
        scores, age = selector.scores(token, action)
        hidden = cell = torch.zeros(2, config.lstm)
        for t in range(10):
            hidden, cell = selector.lstm(action[:, t], (hidden, cell))
        expected = scores_by_hand(selector, hidden, selector.key(token), age[9].expand(2, 10))
    np.testing.assert_allclose(scores[:, 9].numpy(), expected, rtol=1e-4, atol=1e-5)


def test_jump_softmax_gives_exactly_zero_to_minus_infinity(seed: int) -> None:
    logits = 10 * torch.randn(5, 7, generator=torch.Generator().manual_seed(seed))
    bias = torch.zeros(7)
    bias[[2, 5]] = NEG_INF
    weights = jump_softmax(logits, bias)
    assert torch.equal(weights[:, [2, 5]], torch.zeros(5, 2))
    kept = [0, 1, 3, 4, 6]
    torch.testing.assert_close(weights[:, kept], logits[:, kept].softmax(-1))
    torch.testing.assert_close(weights.sum(-1), torch.ones(5))
    only = torch.full((7,), NEG_INF)
    only[0] = 0.0  # the current slot alone
    assert torch.equal(jump_softmax(logits, only)[:, 0], torch.ones(5))
