"""Samples stay within box and rate, and are as smooth as they are said to be."""

from __future__ import annotations

import numpy as np
import pytest

from tests.control.planning.toys import FORCE, limits
from tests.safety.support import DRIVING, ODD, PERIOD, Watch
from wmrt.control.planning.sampler import Sampler
from wmrt.core.types import ActionSpec
from wmrt.safety import Limits

ULP = 2.0**-23  # of a float32 in [1, 2)


@pytest.mark.parametrize("spec", [DRIVING, ODD])
def test_samples_keep_box_and_rate(spec: ActionSpec, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bounds = Limits.from_spec(spec, period=PERIOD)
    sampler = Sampler(bounds, 6, (0.9,) * len(spec), 0.5, seed)
    for _ in range(20):
        before = rng.uniform(-1, 1, len(spec)).astype(np.float32)
        base = rng.uniform(-3, 3, (6, len(spec)))
        plans = sampler.draw(base, before, 30)
        assert plans.dtype == np.float32 and plans.shape == (30, 6, len(spec))
        assert np.abs(plans).max() <= 1.0
        path = np.concatenate([np.tile(before, (30, 1, 1)), plans], axis=1).astype(np.float64)
        change = np.diff(path, axis=1)
        for i, dim in enumerate(spec.dims):
            up, down = dim.max_delta(PERIOD)
            assert change[..., i].max() <= up + ULP and -change[..., i].min() <= down + ULP
        assert len(np.unique(plans[:, -1], axis=0)) > 1


@pytest.mark.parametrize("spec", [DRIVING, ODD])
def test_what_is_admitted_would_pass_the_breakers_untouched(spec: ActionSpec, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sampler = Sampler(Limits.from_spec(spec, period=PERIOD), 8, (0.1,) * len(spec), 0.0, seed)
    for _ in range(50):
        before = rng.uniform(-1, 1, len(spec)).astype(np.float32)
        watch = Watch(spec, before.tolist())
        for n, row in enumerate(sampler.admit(rng.normal(0, 2, (8, len(spec))), before)):
            watch.see((n + 1) * round(PERIOD * 1e9), row.tolist())


def test_a_narrower_box_of_the_breakers_counts(seed: int) -> None:
    data = limits().to_json()
    data["dims"][0].update(low=-1.0, high=2.0)  # of [-4, 4]
    narrow = Limits.from_json(data)
    sampler = Sampler(narrow, 5, (2.0,), 0.0, seed)
    plans = sampler.draw(np.zeros((5, 1)), np.zeros(1), 200)
    assert plans.min() == -0.25 and plans.max() == 0.5
    admitted = sampler.admit(np.array([[-1.0], [1.0], [-1.0], [1.0], [0.0]]), np.zeros(1))
    assert admitted[:, 0].tolist() == [-0.25, 0.5, -0.25, 0.5, 0.0]


def test_the_first_sample_is_the_base(seed: int) -> None:
    base = np.random.default_rng(seed).uniform(-0.9, 0.9, (5, 1))
    sampler = Sampler(limits(), 5, (0.5,), 0.5, seed)
    assert np.array_equal(sampler.draw(base, np.zeros(1), 4)[0], base.astype(np.float32))


@pytest.mark.parametrize("smoothness", [0.0, 0.7, 0.95])
def test_noise_has_the_spread_and_correlation_asked_for(smoothness: float, seed: int) -> None:
    count, horizon, spread = 40_000, 5, 0.1
    sampler = Sampler(limits(FORCE), horizon, (spread,), smoothness, seed)
    plans = sampler.draw(np.zeros((horizon, 1)), np.zeros(1), count)[1:, :, 0] / spread
    found = np.cov(plans.T)
    steps = np.arange(horizon)
    expected = smoothness ** np.abs(steps[:, None] - steps)
    # A covariance of n normals has standard deviation at most sqrt(2 / n); five of them.
    assert np.abs(found - expected).max() < 5 * np.sqrt(2.0 / count)


def test_draws_belong_to_the_sampler_and_start_again(seed: int) -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[union-attr,index]
    a, b = (Sampler(limits(), 4, (0.5,), 0.5, seed) for _ in range(2))
    base, last = np.zeros((4, 1)), np.zeros(1)
    first = [a.draw(base, last, 6).tobytes() for _ in range(3)]
    assert len(set(first)) == 3
    assert [b.draw(base, last, 6).tobytes() for _ in range(3)] == first
    a.reset()
    assert [a.draw(base, last, 6).tobytes() for _ in range(3)] == first
    other = Sampler(limits(), 4, (0.5,), 0.5, seed + 1)
    assert other.draw(base, last, 6).tobytes() != first[0]
    assert np.random.get_state()[1].tolist() == before  # type: ignore[union-attr,index]
