"""Returns and weights against the same sums written out in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wmrt.control.planning.scores import scores, weights


def test_scores_are_discounted_rewards_of_what_is_reached(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, horizon = 7, int(rng.integers(1, 9))
    reward = rng.normal(size=(count, horizon)).astype(np.float32)
    proceed = rng.uniform(0.1, 1.0, (count, horizon)).astype(np.float32)
    discount, tail = float(rng.uniform(0.5, 1.0)), int(rng.integers(0, 20))
    found = scores(reward, proceed, discount, tail)
    assert found.dtype == np.float64 and found.shape == (count,)
    for n in range(count):
        parts, alive = [], 1.0
        for t in range(horizon):
            parts.append(discount**t * alive * float(reward[n, t]))
            alive *= float(proceed[n, t])
        parts += [discount ** (horizon + j) * alive * float(reward[n, -1]) for j in range(tail)]
        scale = math.fsum(map(abs, parts))
        assert abs(found[n] - math.fsum(parts)) <= 100 * 2.0**-53 * scale


def test_a_crash_at_the_end_of_the_horizon_costs_what_would_have_followed() -> None:
    reward = np.ones((2, 4))
    proceed = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0]])
    assert scores(reward, proceed, 1.0, 0).tolist() == [4.0, 4.0]
    assert scores(reward, proceed, 1.0, 10).tolist() == [14.0, 4.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_number_spoils_its_sequence_alone(bad: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for part in range(2):
        future = [rng.uniform(0.5, 1.0, (5, 6)) for _ in range(2)]
        clean = scores(*future, 0.9, 3)
        row, at = int(rng.integers(5)), int(rng.integers(6))
        future[part][row, at] = bad
        found = scores(*future, 0.9, 3)
        assert not np.isfinite(found[row])
        others = np.arange(5) != row
        assert np.array_equal(found[others], clean[others])


def test_weights_are_a_softmax(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, temperature = rng.normal(0, 3, 40), float(rng.uniform(0.05, 2.0))
    found = weights(values, temperature)
    assert found is not None
    powers = [math.exp((v - values.max()) / temperature) for v in values.tolist()]
    total = math.fsum(powers)
    expected = np.array([power / total for power in powers])
    # exp's argument is off by half an ulp, at most 1,000 here; the division and sum add a few.
    np.testing.assert_allclose(found, expected, rtol=1_000 * 2.0**-52, atol=2.0**-1000)
    assert abs(found.sum() - 1.0) < 1e-14


def test_values_that_are_not_finite_weigh_nothing_and_change_nothing(seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=9)
    spoiled = np.insert(values, [0, 4, 9], [math.nan, math.inf, -math.inf])
    found, clean = weights(spoiled, 0.3), weights(values, 0.3)
    assert found is not None and clean is not None
    bad = ~np.isfinite(spoiled)
    assert found[bad].tolist() == [0.0] * 3
    np.testing.assert_allclose(found[~bad], clean, rtol=1e-14)


def test_without_a_finite_value_there_are_no_weights() -> None:
    assert weights(np.array([math.nan, math.inf, -math.inf]), 1.0) is None


def test_far_apart_values_overflow_nothing() -> None:
    found = weights(np.array([-1.7e308, 1.7e308, 0.0]), 1e-6)
    assert found is not None and found.tolist() == [0.0, 1.0, 0.0]
