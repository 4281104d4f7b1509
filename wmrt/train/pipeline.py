"""From a folder of episodes to a checkpoint: statistics, training, compensation, card."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wmrt.core.errors import UsageError
from wmrt.model.checkpoint import save_checkpoint
from wmrt.model.config import ModelConfig, preset
from wmrt.model.network import Network
from wmrt.runtime.build import to_checkpoint
from wmrt.train.card import card
from wmrt.train.dataset import Episode, Meta, Recording, load_episodes
from wmrt.train.occlusion import group_mask
from wmrt.train.statistics import fit_changes, fit_knots
from wmrt.train.trainer import Progress, TrainConfig, Trainer, train_compensation


@dataclass(frozen=True)
class Reproduction:
    """Everything that determines the shipped checkpoint: the recording and the run."""

    env: str
    episodes: int
    first_seed: int
    model: ModelConfig
    train: TrainConfig


#: `wmrt collect` and `wmrt train --reproduce` use these.
SHIPPED = Reproduction("wmrt/Highway-v0", 1600, 0, preset("small"), TrainConfig())


@dataclass
class Prepared:
    """Data and an untrained network with its statistics fitted."""

    meta: Meta
    data: Recording
    network: Network
    trainer: Trainer
    episodes: list[Episode]


def prepare(
    data: Path, model: ModelConfig, train: TrainConfig, limit: int | None = None
) -> Prepared:
    """Load ``data`` (the first ``limit`` episodes by seed) and build network and trainer."""
    meta = Meta.read(data)
    if meta.horizon != model.chunk:
        raise UsageError(
            f"{data} holds chunks of {meta.horizon} actions, the model wants {model.chunk}"
        )
    episodes = load_episodes(data)
    if limit is not None:
        if limit > len(episodes):
            raise UsageError(
                f"{data} holds {len(episodes)} episodes, {limit} are needed; run wmrt collect"
            )
        episodes = episodes[:limit]
    schema = fit_knots(meta.schema, episodes)
    recording = Recording.build(episodes, schema)
    torch.manual_seed(train.seed)  # initial weights
    network = Network(schema, model, meta.actions)
    fit_changes(network, recording)
    trainer = Trainer(network, recording, train, group_mask(schema, meta.sensor_groups))
    return Prepared(meta, recording, network, trainer, episodes)


def train(
    data: Path,
    out: Path,
    model: ModelConfig,
    config: TrainConfig,
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train to the end (resuming from ``out``/work if it holds this run) and write the checkpoint
    ``out``.

    Returns the provenance that the checkpoint carries.
    """
    begin = time.monotonic()
    work = out.with_name(out.name + ".work")
    ready = prepare(data, model, config, limit)
    resumed = ready.trainer.resume(work)
    ready.trainer.run(work, progress)
    validation = ready.trainer.validate()
    compensation = train_compensation(ready.network, decoded_chunks(ready), seed=config.seed)
    provenance = {
        "env": ready.meta.env,
        "period": ready.meta.period,
        "episodes": len(ready.episodes),
        "steps": int(ready.data.length.sum()),
        "first_seed": min(e.seed for e in ready.episodes),
        "last_seed": max(e.seed for e in ready.episodes),
        "train": config.to_json(),
        "validation": validation,
        "action_quant": compensation,
        "parameters": sum(p.numel() for p in ready.network.parameters()),
        "seconds": round(time.monotonic() - begin, 1),
        "resumed": resumed,
        "torch": torch.__version__,
    }
    checkpoint = to_checkpoint(ready.network, None, provenance)
    save_checkpoint(out, checkpoint, card=card(ready.network, provenance))
    return provenance


@torch.no_grad()
def decoded_chunks(ready: Prepared, batches: int = 12) -> torch.Tensor:
    """Chunks float32[N, H, A] as the trained head decodes them, on training windows."""
    network, trainer = ready.network, ready.trainer
    network.eval()
    chunks = []
    for i in range(batches):
        generator = torch.Generator().manual_seed(7_000_000 + i)
        batch = trainer.batch(trainer.training, 32, generator)
        hidden, _ = network(batch.codes[:, :-1], batch.values[:, :-1], batch.previous, generator)
        decoded = network.action_head.decode(network.action_head(hidden))
        chunks.append(decoded[batch.mask > 0])
    return torch.cat(chunks)
