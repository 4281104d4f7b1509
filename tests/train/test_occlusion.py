"""Sensor dropout: off half the time, for as long as asked, and the truth stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.train.toys import GROUPS, SCHEMA, episode
from wmrt.model.rounding import UNKNOWN
from wmrt.train.dataset import Batch, Recording, window_batch
from wmrt.train.occlusion import Dropout, group_mask, occlude


def batch_of(seed: int, rows: int, steps: int) -> Batch:
    made = [episode(seed + i, steps) for i in range(4)]
    data = Recording.build(made, SCHEMA)
    return window_batch(data, torch.arange(rows) % 4, torch.zeros(rows, dtype=torch.int64), steps)


def test_group_masks_name_columns() -> None:
    mask = group_mask(SCHEMA, GROUPS)
    assert mask.tolist() == [[False, True, False, True], [False, False, True, False]]
    assert group_mask(SCHEMA, ()).numel() == 0


@pytest.mark.parametrize("dwell", [1.0, 3.0, 10.0])
def test_off_half_the_time_with_the_dwell_asked_for(dwell: float, seed: int) -> None:
    steps, rows = 200, 64
    batch, groups = batch_of(seed, rows, steps), group_mask(SCHEMA, GROUPS)
    generator = torch.Generator().manual_seed(seed)
    seen = occlude(batch, groups, dwell, generator)
    off = (seen.codes[:, :, 1] == 0).numpy()
    assert np.array_equal(off, (seen.codes[:, :, 3] == 0).numpy())  # one group, together
    # correlated samples: about rows * steps / (2 dwell) independent ones
    independent = rows * (steps + 1) / max(1.0, 2 * dwell)
    assert abs(off.mean() - 0.5) < 6 * 0.5 / np.sqrt(independent)
    flips = int((off[:, 1:] != off[:, :-1]).sum())
    expected = rows * steps / dwell
    assert abs(flips - expected) <= 6 * np.sqrt(expected * (1 - 1 / dwell)) + 1e-9
    other = (seen.codes[:, :, 2] == 0).numpy()
    if dwell > 1:
        # the groups switch on their own: they agree half the time
        assert abs((off == other).mean() - 0.5) < 6 * 0.5 / np.sqrt(independent / 2)


def test_a_window_may_begin_in_the_dark(seed: int) -> None:
    batch, groups = batch_of(seed, 400, 2), group_mask(SCHEMA, GROUPS)
    seen = occlude(batch, groups, 50.0, torch.Generator().manual_seed(seed))
    off = float((seen.codes[:, 0, 1] == 0).float().mean())
    assert abs(off - 0.5) < 6 * 0.5 / np.sqrt(400)


def test_what_is_hidden_is_unknown_and_everything_else_is_as_it_was(seed: int) -> None:
    batch = batch_of(seed, 16, 40)
    codes, values = batch.codes.clone(), batch.values.clone()
    seen = occlude(batch, group_mask(SCHEMA, GROUPS), 4.0, torch.Generator().manual_seed(seed))
    hidden = (seen.codes == 0) & (codes > 0)
    assert bool(hidden.any()) and not bool(hidden[:, :, 0].any())
    assert not bool(seen.values[hidden].any())
    assert torch.equal(seen.codes[~hidden], codes[~hidden])
    assert torch.equal(seen.values[~hidden], values[~hidden])
    assert torch.equal(seen.true_values, values) and torch.equal(seen.true_codes, codes)
    assert torch.equal(batch.codes, codes) and torch.equal(batch.values, values)


def test_it_is_a_function_of_its_generator(seed: int) -> None:
    batch, groups = batch_of(seed, 8, 40), group_mask(SCHEMA, GROUPS)
    runs = [occlude(batch, groups, 4.0, torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert torch.equal(runs[0].codes, runs[1].codes)
    assert not torch.equal(runs[0].codes, runs[2].codes)


def test_step_by_step_it_is_the_same_process(seed: int) -> None:
    dwell, steps = 4.0, 6000
    dropout = Dropout(group_mask(SCHEMA, GROUPS), dwell)
    dropout.reset(seed)
    q = np.arange(len(SCHEMA.columns), dtype=np.int64)
    shown = np.stack([dropout.hide(q) for _ in range(steps)])
    off = shown == UNKNOWN
    assert np.array_equal(shown[~off], np.broadcast_to(q, shown.shape)[~off])
    assert not off[:, 0].any() and np.array_equal(off[:, 1], off[:, 3])
    independent = steps / (2 * dwell)
    assert abs(off[:, 1].mean() - 0.5) < 6 * 0.5 / np.sqrt(independent)
    flips, expected = int((off[1:, 1] != off[:-1, 1]).sum()), steps / dwell
    assert abs(flips - expected) <= 6 * np.sqrt(expected * (1 - 1 / dwell))
    assert abs((off[:, 1] == off[:, 2]).mean() - 0.5) < 6 * 0.5 / np.sqrt(independent)
    dropout.reset(seed)
    assert np.array_equal(shown[:50], np.stack([dropout.hide(q) for _ in range(50)]))
