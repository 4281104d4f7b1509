"""Knots and scales read off the data, also where a field never moves or is never known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.train.toys import ACTIONS, CONFIG, QUICK, SCHEMA, episodes, trainer_for
from wmrt.model.network import Network
from wmrt.model.schema import UNKNOWN, StateSchema, numeric, vector
from wmrt.model.twohot import symlog
from wmrt.train.dataset import Recording
from wmrt.train.statistics import MIN_SCALE, fit_changes, fit_knots


def knots_of(schema: StateSchema, column: int) -> np.ndarray:
    return np.array(schema.columns[column].knots)


def test_knots_ascend_by_at_least_the_resolution_and_keep_the_ends() -> None:
    made = episodes(20)
    fitted = fit_knots(SCHEMA, made)
    assert fitted.input_hash == SCHEMA.input_hash and fitted.hash != SCHEMA.hash
    for i in (0, 1):
        column, knots = fitted.columns[i], knots_of(fitted, i)
        assert len(knots) == len(SCHEMA.columns[i].knots)
        assert (knots[0], knots[-1]) == (column.low, column.high)
        # float32 knots: a difference of two loses an ulp of the range
        assert np.diff(knots).min() >= 10.0**-column.decimals - 2e-6


def test_knots_stand_half_by_quantile_half_uniform() -> None:
    made = episodes(20)
    fitted = fit_knots(SCHEMA, made)
    seen = np.concatenate([e.q for e in made])[:, 0] / 100
    uniform = np.linspace(-10, 10, 17)
    quantile = np.quantile(seen, np.linspace(0, 1, 17))
    expected = 0.5 * uniform + 0.5 * quantile
    expected[[0, -1]] = uniform[[0, -1]]
    np.testing.assert_allclose(knots_of(fitted, 0), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [-1000, 0, 137, 1000, UNKNOWN])
def test_a_constant_or_unknown_field_keeps_usable_knots(value: int) -> None:
    made = episodes(6)
    for e in made:
        e.q[:, 0] = value
    knots = knots_of(fit_knots(SCHEMA, made), 0)
    assert np.all(np.diff(knots) > 0) and (knots[0], knots[-1]) == (-10, 10)
    if value == UNKNOWN:
        np.testing.assert_allclose(knots, np.linspace(-10, 10, 17), atol=1e-5)


def test_a_range_with_fewer_values_than_knots_stays_uniform() -> None:
    coarse = StateSchema(
        {**SCHEMA.fields, "v": numeric("m/s", -4, 4, decimals=0, buckets=16)}, neutral=[0.0]
    )
    made = episodes(4)
    for e in made:
        e.q[:, 1] = np.clip(e.q[:, 1] // 100, -4, 4)
    np.testing.assert_allclose(
        knots_of(fit_knots(coarse, made), 1), np.linspace(-4, 4, 17), atol=1e-6
    )


def test_components_of_a_vector_share_their_knots() -> None:
    schema = StateSchema({"pose": vector(2, "m", -10, 10, decimals=2, buckets=16)}, neutral=[0.0])
    made = episodes(10)
    for e in made:
        e.q = e.q[:, [0, 1]]
    fitted = fit_knots(schema, made)
    assert fitted.columns[0].knots == fitted.columns[1].knots != schema.columns[0].knots


def test_changes_are_the_median_of_those_that_happened() -> None:
    made = episodes(10)
    made[0].q[7, 1] = UNKNOWN
    for e in made:
        if e.terminated:
            e.q[-1, :2] = 1000, 400  # as far as the fields reach
    network = Network(SCHEMA, CONFIG, ACTIONS)
    fit_changes(network, Recording.build(made, SCHEMA))
    head = network.dynamics
    for i in range(2):
        changes, seen = [], []
        for e in made:
            q = e.q[:, i].astype(float) / 100
            q[e.q[:, i] == UNKNOWN] = np.nan
            seen.append(q[~np.isnan(q)])
            steps = np.abs(np.diff(q))
            changes.append(
                steps[:-1] if e.terminated else steps
            )  # what a crash leaves is no change
        all_changes = np.concatenate(changes)
        moved = np.sort(all_changes[all_changes > 1e-6])
        low, high = moved[(len(moved) - 1) // 2], moved[len(moved) // 2]
        assert low - 1e-5 <= float(head.delta_scale[i]) <= high + 1e-5
        limit = symlog(torch.tensor(moved[-1] * 1.05 / float(head.delta_scale[i])))
        assert abs(float(head.delta_limit[i]) - float(limit)) < 1e-4
        assert abs(float(head.fill[i]) - np.median(np.concatenate(seen))) < 0.02
    largest = max(float(np.abs(e.reward).max()) for e in made)
    assert abs(float(head.reward_scale) - 1.05 * largest) < 1e-6


@pytest.mark.parametrize("value", [250, UNKNOWN])
def test_constant_fields_and_rewards_train_without_nan(value: int, seed: int) -> None:
    made = episodes(8)
    for e in made:
        e.q[:, 0] = value
        e.q[:, 3] = 1
        e.reward[:] = 0.0
    trainer = trainer_for(made, seed, QUICK)
    head = trainer.network.dynamics
    assert float(head.delta_scale[0]) == pytest.approx(MIN_SCALE * 20)
    for name in ("delta_scale", "delta_limit", "fill", "reward_scale"):
        assert bool(torch.isfinite(getattr(head, name)).all())
        assert bool((getattr(head, name) > 0).all()) or name == "fill"
    for _ in range(5):
        losses = trainer.step()
        assert all(np.isfinite(value) for value in losses.values()), losses
    assert all(bool(torch.isfinite(p).all()) for p in trainer.network.parameters())
