"""Calibration inputs: windows of recorded episodes, some kept apart to measure on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.core.seeds import require_training_seeds
from wmrt.model.checkpoint import check_schema
from wmrt.model.schema import StateSchema
from wmrt.train.dataset import Episode, Meta, Recording, load_episodes, window_batch

#: Share of the episodes that calibration does not see, at least one.
HELD = 0.1


@dataclass(frozen=True)
class Samples:
    """B windows of T steps, as `wmrt.model.stages.Windows` asks for them.

    codes int64[B, T, F], values float32[B, T, F], previous actions float32[B, T, A]; seeds int64[B]
    are the recorded episodes' own.
    """

    codes: Tensor
    values: Tensor
    previous: Tensor
    seeds: Tensor

    def __len__(self) -> int:
        return len(self.codes)

    def first(self, count: int) -> Samples:
        """At most ``count`` of the windows."""
        return Samples(*(t[:count] for t in (self.codes, self.values, self.previous, self.seeds)))

    def digest(self) -> str:
        """SHA-256 (hex) of every number in it."""
        hasher = hashlib.sha256()
        for tensor in (self.codes, self.values, self.previous, self.seeds):
            hasher.update(tensor.contiguous().numpy().tobytes())
        return hasher.hexdigest()


@dataclass(frozen=True)
class Calibration:
    """Windows to calibrate on and windows to measure on, of different episodes."""

    used: Samples
    held: Samples
    folders: tuple[str, ...]
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Where the windows are from, for a checkpoint's provenance; no path of this machine."""
        return {
            "folders": list(self.folders),
            "windows": len(self.used),
            "held_windows": len(self.held),
            "steps": self.used.codes.shape[1],
            "seed": self.seed,
            "episodes": [int(self.used.seeds.min()), int(self.used.seeds.max())],
            "sha256": self.used.digest(),
            "held_sha256": self.held.digest(),
        }


def load_samples(
    folders: Sequence[Path],
    schema: StateSchema,
    actions: int,
    *,
    windows: int,
    steps: int,
    seed: int = 0,
) -> Calibration:
    """Windows of ``steps`` steps, drawn evenly from all there are; a quarter as many to measure on.

    Args:
        folders: recordings of `wmrt collect`.
        schema: the model's; states are encoded with its buckets. actions: dimensions of its action.
        windows: how many to calibrate on; fewer if the recordings hold fewer.
        seed: of the draw and of the split by episode.

    Raises:
        UsageError: no recording, one that holds seeds held out for evaluation, too few episodes
            that are ``steps`` steps long.
        CheckpointError: states of another schema than the model's.
    """
    episodes = [e for folder in folders for e in _episodes(folder, schema, actions)]
    long = [e for e in episodes if len(e) >= steps]
    if len(long) < 2:
        raise UsageError(
            f"{len(long)} of {len(episodes)} recorded episodes are {steps} steps long; calibration "
            "needs two, one of them to measure on: wmrt collect records more"
        )
    draw = torch.Generator().manual_seed(seed)
    order = [long[i] for i in torch.randperm(len(long), generator=draw).tolist()]
    apart = max(1, int(len(order) * HELD))
    return Calibration(
        _draw(order[apart:], schema, windows, steps, draw),
        _draw(order[:apart], schema, max(1, windows // 4), steps, draw),
        tuple(folder.resolve().name for folder in folders),
        seed,
    )


def _episodes(folder: Path, schema: StateSchema, actions: int) -> list[Episode]:
    meta = Meta.read(folder)
    check_schema(schema, meta.schema)
    if len(meta.actions) != actions:
        raise UsageError(
            f"{folder} records actions of {len(meta.actions)} dimensions, the model takes {actions}"
        )
    episodes = load_episodes(folder)
    require_training_seeds(episode.seed for episode in episodes)
    return episodes


def _draw(
    episodes: Sequence[Episode],
    schema: StateSchema,
    windows: int,
    steps: int,
    draw: torch.Generator,
) -> Samples:
    """Windows drawn without repetition from all of ``episodes``."""
    starts = [(i, s) for i, e in enumerate(episodes) for s in range(len(e) - steps + 1)]
    chosen = torch.randperm(len(starts), generator=draw)[:windows]
    pairs = torch.tensor(starts)[chosen]
    wanted = sorted(set(pairs[:, 0].tolist()))  # encode no other episodes
    place = {episode: at for at, episode in enumerate(wanted)}
    data = Recording.build([episodes[i] for i in wanted], schema)
    index = torch.tensor([place[i] for i in pairs[:, 0].tolist()])
    batch = window_batch(data, index, pairs[:, 1], steps)
    seeds = torch.tensor([episodes[i].seed for i in pairs[:, 0].tolist()])
    return Samples(batch.codes[:, :-1], batch.values[:, :-1], batch.previous, seeds)
