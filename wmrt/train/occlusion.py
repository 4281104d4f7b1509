"""Sensor dropout as data augmentation: groups of fields switch off and on at random."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.model.rounding import UNKNOWN
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


class Dropout:
    """The process of `occlude` over one drive, step by step.

    Args:
        groups: bool[G, F] of `group_mask`. dwell: mean steps in one state, at least 1.
    """

    def __init__(self, groups: Tensor, dwell: float) -> None:
        self._groups: NDArray[np.bool_] = groups.numpy()
        self._leave = 1.0 / dwell
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Start a drive; the same ``seed`` hides the same."""
        self._random = np.random.default_rng([seed, 0xD22])
        self._off = self._random.random(len(self._groups)) < 0.5

    def hide(self, q: NDArray[np.int64]) -> NDArray[np.int64]:
        """The state q int64[F] as the sensors show it now; advances by one step."""
        hidden = self._groups[self._off].any(axis=0)
        self._off = self._off ^ (self._random.random(len(self._off)) < self._leave)
        return np.where(hidden, np.int64(UNKNOWN), q)
