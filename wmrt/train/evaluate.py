"""Open-loop accuracy of the world model: imagined states against recorded ones.

Errors are root mean squares over all numeric columns in standard deviations of that column, on
windows in which the drive went on for the whole horizon. Persistence (nothing changes) is the
baseline every horizon has to beat.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.model.network import Network
from wmrt.runtime.imagination import roll
from wmrt.runtime.step import Rollout
from wmrt.train.dataset import Batch, Recording, window_batch

HORIZONS = (1, 5, 15)


@dataclass(frozen=True)
class Horizon:
    """Error ``steps`` ahead. Numeric: RMSE in standard deviations; category: share that is
    wrong."""

    steps: int
    model: float
    persistence: float
    category_model: float
    category_persistence: float
    windows: int


def starts(data: Recording, context: int, ahead: int, stride: int) -> tuple[Tensor, Tensor]:
    """Episode and start of every window whose ``context + ahead`` steps all happened."""
    episodes, first = [], []
    for episode, length in enumerate(data.length.tolist()):
        # the step that ended a drive by a crash has no meaningful next state
        usable = length - int(data.terminated[episode])
        for start in range(0, usable - context - ahead + 1, stride):
            episodes.append(episode)
            first.append(start)
    if not episodes:
        raise UsageError(f"no episode is {context + ahead} steps long; record longer ones")
    return torch.tensor(episodes), torch.tensor(first)


@torch.inference_mode()
def open_loop(
    network: Network, data: Recording, *, context: int = 32, stride: int = 20
) -> list[Horizon]:
    """Errors at `HORIZONS` steps of imagination after ``context`` observed steps."""
    network.eval()
    ahead = max(HORIZONS)
    episode, first = starts(data, context, ahead, stride)
    batch = window_batch(data, episode, first, context + ahead)
    columns = network.schema.columns
    values, known = network.split(batch.codes, batch.values)
    spread = _spread(network, values, known)
    category = [i for i, c in enumerate(columns) if c.kind != "numeric"]
    imagined = _imagine(network, batch, context, ahead)
    results = []
    for steps in HORIZONS:
        at = context - 1 + steps
        truth, seen = values[:, at], known[:, at] & known[:, context - 1]
        guess, codes = _read(network, imagined, steps)
        model = ((guess - truth) / spread)[seen].square().mean().sqrt()
        still = ((values[:, context - 1] - truth) / spread)[seen].square().mean().sqrt()
        true_codes = batch.codes[:, at][:, category]
        wrong = (codes != true_codes).float().mean() if category else torch.zeros(())
        held = (batch.codes[:, context - 1][:, category] != true_codes).float()
        same = held.mean() if category else torch.zeros(())
        results.append(
            Horizon(steps, float(model), float(still), float(wrong), float(same), len(episode))
        )
    return results


def _spread(network: Network, values: Tensor, known: Tensor) -> Tensor:
    """Standard deviation of every numeric column, at least one unit of its last decimal place: in a
    column that never moves, an error below that is none."""
    columns = [c for c in network.schema.columns if c.kind == "numeric"]
    if not columns:
        raise UsageError("the schema has no numbers, so there is no error to measure in them")
    seen = [values[..., i][known[..., i]] for i in range(len(columns))]
    return torch.stack(
        [
            x.std().clamp(min=10.0**-c.decimals) if len(x) > 1 else torch.tensor(1.0)
            for x, c in zip(seen, columns, strict=True)
        ]
    )


def _read(network: Network, imagined: Rollout, steps: int) -> tuple[Tensor, Tensor]:
    """Numeric values (the fill value where unknown is foreseen) and category codes after
    ``steps``."""
    new_codes, new_values = network.schema.encode_q(imagined.q[:, steps - 1])
    codes = torch.from_numpy(new_codes).long()
    values, known = network.split(codes, torch.from_numpy(new_values))
    category = [i for i, c in enumerate(network.schema.columns) if c.kind != "numeric"]
    return torch.where(known, values, network.dynamics.fill), codes[:, category]


def _imagine(network: Network, batch: Batch, context: int, ahead: int) -> Rollout:
    """``ahead`` imagined steps under the recorded actions, after ``context`` observed ones."""
    ring = network.new_ring(len(batch.codes))
    generator = torch.Generator().manual_seed(0)
    hidden = torch.empty(0)
    for t in range(context):
        hidden = network.step(
            batch.codes[:, t], batch.values[:, t], batch.previous[:, t], ring, generator
        )
    now = context - 1
    plan = batch.action[:, now : now + ahead]
    return roll(network, ring, hidden, batch.codes[:, now], batch.values[:, now], plan, generator)
