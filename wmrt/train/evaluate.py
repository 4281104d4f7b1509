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
    spread = torch.stack([values[..., i][known[..., i]].std() for i in range(values.shape[-1])])
    spread = spread.clamp(min=1e-6)
    category = [i for i, c in enumerate(columns) if c.kind != "numeric"]
    imagined = _imagine(network, batch, context, ahead)
    results = []
    for steps in HORIZONS:
        at = context - 1 + steps
        truth, seen = values[:, at], known[:, at] & known[:, context - 1]
        guess, codes = imagined[steps - 1]
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


def _imagine(
    network: Network, batch: Batch, context: int, ahead: int
) -> list[tuple[Tensor, Tensor]]:
    """Numeric values and category codes after 1, 2, ... ``ahead`` imagined steps."""
    schema, head = network.schema, network.dynamics
    numeric = [i for i, c in enumerate(schema.columns) if c.kind == "numeric"]
    other = [i for i, c in enumerate(schema.columns) if c.kind != "numeric"]
    ring = network.new_ring(len(batch.codes))
    generator = torch.Generator().manual_seed(0)
    hidden = torch.empty(0)
    for t in range(context):
        hidden = network.step(
            batch.codes[:, t], batch.values[:, t], batch.previous[:, t], ring, generator
        )
    codes, values = batch.codes[:, context - 1].clone(), batch.values[:, context - 1].clone()
    outcome = []
    for t in range(context - 1, context - 1 + ahead):
        prediction = network.predict(hidden, batch.action[:, t])
        following, will_know = head.decode_state(prediction, *network.split(codes, values))
        category = head.decode_category(prediction) if other else torch.empty(0)
        outcome.append((following, category))
        q = torch.full(codes.shape, -(2**63), dtype=torch.int64)
        exact = torch.from_numpy(schema.quantize_array(following.numpy()))
        q[:, numeric] = torch.where(will_know, exact, q[:, numeric])
        if other:
            q[:, other] = torch.where(category > 0, category, q[:, other])
        new_codes, new_values = schema.encode_q(q.numpy())
        codes, values = torch.from_numpy(new_codes).long(), torch.from_numpy(new_values)
        hidden = network.step(codes, values, batch.action[:, t], ring, generator)
    return outcome
