"""Two-hot targets and decoding around the mode."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from wmrt.model.twohot import bin_centers, decode_mode, symexp, symlog, twohot, twohot_index

EPS = torch.finfo(torch.float32).eps
RANGES = [(-1.0, 1.0, 64), (-1.0, 1.0, 21), (0.0, 7.0, 2), (-3.5, 0.25, 41)]


@pytest.mark.parametrize(("low", "high", "bins"), RANGES)
def test_target_is_two_neighbours_whose_mean_is_the_value(
    low: float, high: float, bins: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = low + (high - low) * torch.rand(7, 30, generator=generator)
    target = twohot(x, low, high, bins)
    assert target.shape == (7, 30, bins) and target.dtype == torch.float32
    assert bool((target >= 0).all())
    torch.testing.assert_close(target.sum(-1), torch.ones(7, 30), rtol=0, atol=2 * EPS)
    used = target > 0
    assert int(used.sum(-1).max()) <= 2
    index = torch.arange(bins).expand_as(target)
    spread = torch.where(used, index, 0).amax(-1) - torch.where(used, index, bins).amin(-1)
    assert int(spread.max()) <= 1
    mean = (target * bin_centers(low, high, bins)).sum(-1)
    # position is computed to bins * eps of a bin, so the mean to a few eps of the range
    torch.testing.assert_close(mean, x, rtol=0, atol=16 * EPS * max(abs(low), abs(high)))


@pytest.mark.parametrize(("low", "high", "bins"), RANGES)
def test_values_outside_are_the_ends(low: float, high: float, bins: int) -> None:
    x = torch.tensor([low - 5, low, high, high + 5, -math.inf, math.inf])
    target = twohot(x, low, high, bins)
    first, last = torch.eye(bins)[0], torch.eye(bins)[-1]
    for row, expected in zip(target, [first, first, last, last, first, last], strict=True):
        assert torch.equal(row, expected)


def test_index_and_target_agree(seed: int) -> None:
    x = 2.5 * torch.randn(50, generator=torch.Generator().manual_seed(seed))
    lower, weight = twohot_index(x, -1, 1, 21)
    target = twohot(x, -1, 1, 21)
    assert int(lower.min()) >= 0 and int(lower.max()) <= 19
    assert torch.equal(target.gather(-1, (lower + 1)[:, None])[:, 0], weight)


def test_decoding_a_target_gives_the_value_back(seed: int) -> None:
    x = 2 * torch.rand(200, generator=torch.Generator().manual_seed(seed)) - 1
    centers = bin_centers(-1, 1, 64)
    decoded = decode_mode(twohot(x, -1, 1, 64).log(), centers)
    torch.testing.assert_close(decoded, x, rtol=0, atol=16 * EPS)


def test_decoding_is_the_mean_of_five_bins_around_the_mode(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(40, 21)).astype(np.float32) * 3
    logits[0, 0] = logits[1, 20] = 99  # modes at the ends: fewer neighbours
    centers = bin_centers(-1, 1, 21)
    got = decode_mode(torch.from_numpy(logits), centers).numpy()
    for row, value in zip(logits.astype(np.float64), got, strict=True):
        mode = int(row.argmax())
        near = np.arange(max(0, mode - 2), min(21, mode + 3))
        weight = np.exp(row[near] - row[mode])
        expected = (weight * centers.numpy()[near]).sum() / weight.sum()
        assert abs(value - expected) <= 8 * EPS


def test_two_modes_are_not_averaged() -> None:
    logits = torch.full((64,), -9.0)
    logits[4], logits[60] = 2.0, 2.1  # left and right of an obstacle
    centers = bin_centers(-1, 1, 64)
    assert abs(float(decode_mode(logits, centers)) - float(centers[60])) < 1e-3
    plain = float((logits.softmax(-1) * centers).sum())
    assert abs(plain) < 0.1  # what the plain mean would do: straight on


def test_decoding_stays_inside_the_bins(seed: int) -> None:
    logits = 30 * torch.randn(500, 64, generator=torch.Generator().manual_seed(seed))
    decoded = decode_mode(logits, bin_centers(-1, 1, 64))
    assert float(decoded.abs().max()) <= 1 + 4 * EPS


def test_symlog_and_symexp_are_inverse_odd_and_straight_at_zero(seed: int) -> None:
    x = 50 * torch.randn(200, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(symexp(symlog(x)), x, rtol=16 * EPS, atol=16 * EPS)
    assert torch.equal(symlog(-x), -symlog(x))
    small = torch.tensor([1e-6, -1e-6, 0.0])
    torch.testing.assert_close(symlog(small), small, rtol=2e-6, atol=0)
    torch.testing.assert_close(symexp(small), small, rtol=2e-6, atol=0)
