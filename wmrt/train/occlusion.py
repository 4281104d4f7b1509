"""Sensor dropout as data augmentation: groups of fields switch off and on at random."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from wmrt.model.schema import StateSchema
from wmrt.train.dataset import Batch


def group_mask(schema: StateSchema, groups: tuple[tuple[str, ...], ...]) -> Tensor:
    """bool[G, F]: which columns each sensor group covers."""
    return torch.tensor([[column.field in group for column in schema.columns] for group in groups])


def occlude(batch: Batch, groups: Tensor, dwell: float, generator: torch.Generator) -> Batch:
    """Switch each group off half the time, with a mean dwell of ``dwell`` steps in each state.

    groups bool[G, F] from `group_mask`. The truth stays in ``true_values``.
    """
    rows, steps = batch.codes.shape[:2]
    shape = (rows, steps, groups.shape[0])
    flips = torch.rand(shape, generator=generator) < 1.0 / dwell
    flips[:, 0] = torch.rand(shape[0], shape[2], generator=generator) < 0.5
    off = flips.long().cumsum(1) % 2 == 1
    hidden = (off.unsqueeze(-1) & groups).any(dim=2)
    return replace(
        batch,
        codes=batch.codes.masked_fill(hidden, 0),
        values=batch.values.masked_fill(hidden, 0.0),
    )
