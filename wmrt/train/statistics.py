"""What training reads off the data before the first step: bucket knots and change scales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from wmrt.model.network import Network
from wmrt.model.schema import UNKNOWN, StateSchema
from wmrt.model.twohot import symlog
from wmrt.train.dataset import Episode, Recording

#: No change scale below this share of the field's range: a constant field would give a scale of 0
#: and NaN.
MIN_SCALE = 1e-4


def fit_knots(schema: StateSchema, episodes: Sequence[Episode]) -> StateSchema:
    """Half quantile, half uniform knots per numeric field, no bucket narrower than the field's
    resolution."""
    q = np.concatenate([e.q for e in episodes])
    knots = {}
    for column in schema.columns:
        if column.kind != "numeric" or column.field in knots:
            continue
        same = [j for j, c in enumerate(schema.columns) if c.field == column.field]
        seen = q[:, same]
        seen = seen[seen != UNKNOWN] / 10.0**column.decimals
        count = len(column.knots)
        uniform = np.linspace(column.low, column.high, count)
        quantile = np.quantile(seen, np.linspace(0, 1, count)) if len(seen) else uniform
        mixed = 0.5 * uniform + 0.5 * np.clip(quantile, column.low, column.high)
        mixed[0], mixed[-1] = column.low, column.high
        resolution = 10.0**-column.decimals
        floor = column.low + resolution * np.arange(count)
        ceiling = column.high - resolution * np.arange(count)[::-1]
        if np.any(floor > ceiling):
            knots[column.field] = uniform
            continue
        for j in range(1, count):
            mixed[j] = max(mixed[j], mixed[j - 1] + resolution)
        knots[column.field] = np.minimum(mixed, ceiling)
    return schema.with_knots({name: [float(v) for v in k] for name, k in knots.items()})


def fit_changes(network: Network, data: Recording) -> None:
    """Set the dynamics head's scales: median absolute non-zero change, its limit, fill values,
    reward scale."""
    head = network.dynamics
    values, known = network.split(data.codes, data.values)
    follows = torch.ones(len(values), dtype=torch.bool)
    follows[data.state_start + data.length] = False
    follows[data.state_start + data.length - 1] &= ~data.terminated
    index = torch.nonzero(follows[:-1]).squeeze(1)
    both = known[index] & known[index + 1]
    change = (values[index + 1] - values[index]).abs()
    span = head.high - head.low
    for i in range(head.numeric):
        moved = change[both[:, i], i]
        moved = moved[moved > 0]
        scale = float(moved.median()) if len(moved) else 0.0
        head.delta_scale[i] = max(scale, MIN_SCALE * float(span[i]))
        largest = float(moved.max()) * 1.05 if len(moved) else float(span[i])
        head.delta_limit[i] = symlog(torch.tensor(largest) / head.delta_scale[i])
        seen = values[known[:, i], i]
        head.fill[i] = seen.median() if len(seen) else 0.0
    head.reward_scale.fill_(max(float(data.reward.abs().max()) * 1.05, 1e-6))
