"""From folders of episodes to a checkpoint: statistics, training, compensation, card."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from wmrt.core.errors import UsageError
from wmrt.model.checkpoint import (
    Checkpoint,
    load_checkpoint,
    require_replaceable,
    save_checkpoint,
)
from wmrt.model.config import ModelConfig, preset
from wmrt.model.network import Network
from wmrt.runtime.build import float_network, to_checkpoint
from wmrt.train.card import card
from wmrt.train.collect import collect
from wmrt.train.dataset import Episode, Meta, Recording, load_episodes
from wmrt.train.drivers import ModelDriver
from wmrt.train.occlusion import group_mask
from wmrt.train.statistics import fit_changes, fit_knots
from wmrt.train.trainer import Progress, TrainConfig, Trainer, train_compensation


@dataclass(frozen=True)
class Reproduction:
    """Everything that determines the shipped checkpoint.

    Stage one imitates the expert on ``episodes`` recorded drives. Its result then drives
    ``own_episodes`` more, labelled by the expert, and stage two goes on with both recordings.
    """

    env: str
    episodes: int
    first_seed: int
    own_episodes: int
    own_first_seed: int
    model: ModelConfig
    train: TrainConfig
    second: TrainConfig


#: `wmrt collect` and `wmrt train --reproduce` use these.
SHIPPED = Reproduction(
    "wmrt/Highway-v0",
    1600,
    0,
    240,
    100_000,
    preset("small"),
    TrainConfig(),
    TrainConfig(steps=1200, lr=8e-4, seed=1),
)


@dataclass
class Prepared:
    """Data, and a network with its statistics fitted, or the one training goes on with."""

    meta: Meta
    data: Recording
    network: Network
    trainer: Trainer
    episodes: list[Episode]
    start: Checkpoint | None


def prepare(
    data: Sequence[Path],
    model: ModelConfig,
    train: TrainConfig,
    limit: int | None = None,
    start: Path | None = None,
) -> Prepared:
    """Load the recordings (of the first, ``limit`` episodes by seed), build network and trainer.

    With ``start`` the network, its schema and its statistics are that checkpoint's.
    """
    meta = Meta.read(data[0])
    if meta.horizon != model.chunk:
        raise UsageError(
            f"{data[0]} holds chunks of {meta.horizon} actions, the model wants {model.chunk}"
        )
    episodes, source = _episodes(data, limit)
    base = None if start is None else load_checkpoint(start)
    if base is None:
        schema = fit_knots(meta.schema, episodes)
        torch.manual_seed(train.seed)  # initial weights
        network = Network(schema, model, meta.actions)
    else:
        network = float_network(base)
        schema = network.schema
    recording = Recording.build(episodes, schema, source)
    if base is None:
        fit_changes(network, recording)
    groups = group_mask(schema, meta.sensor_groups)
    trainer = Trainer(network, recording, train, groups, _weights(base))
    return Prepared(meta, recording, network, trainer, episodes, base)


def _weights(checkpoint: Checkpoint | None) -> str:
    """Hash of a checkpoint's weights; empty for none."""
    return "" if checkpoint is None else checkpoint.weights_sha256 or ""


def _episodes(data: Sequence[Path], limit: int | None) -> tuple[list[Episode], list[int]]:
    """Episodes of all folders, and the folder's number of each."""
    episodes: list[Episode] = []
    source: list[int] = []
    for number, folder in enumerate(data):
        loaded = load_episodes(folder)
        if limit is not None and number == 0:
            if limit > len(loaded):
                raise UsageError(
                    f"{folder} holds {len(loaded)} episodes, {limit} are needed; run wmrt collect"
                )
            loaded = loaded[:limit]
        if Meta.read(folder).schema.hash != Meta.read(data[0]).schema.hash:
            raise UsageError(f"{folder} and {data[0]} hold states of different schemas")
        episodes += loaded
        source += [number] * len(loaded)
    return episodes, source


def train(
    data: Sequence[Path],
    out: Path,
    model: ModelConfig,
    config: TrainConfig,
    *,
    limit: int | None = None,
    start: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train to the end (resuming from ``out``.work if it holds this run) and write ``out``.

    Returns the provenance that the checkpoint carries.
    """
    begin = time.monotonic()
    out = out.absolute()
    require_replaceable(out)
    work = out.with_name(out.name + ".work")
    ready = prepare(data, model, config, limit, start)
    resumed = ready.trainer.resume(work)
    ready.trainer.run(work, progress)
    validation = ready.trainer.validate()
    compensation = train_compensation(ready.network, decoded_chunks(ready), seed=config.seed)
    provenance = {
        "env": ready.meta.env,
        "period": ready.meta.period,
        "episodes": len(ready.episodes),
        "steps": int(ready.data.length.sum()),
        "own_episodes": int((ready.data.source > 0).sum()),
        "first_seed": min(e.seed for e in ready.episodes),
        "last_seed": max(e.seed for e in ready.episodes),
        "train": config.to_json(),
        "start": None if ready.start is None else ready.start.provenance,
        "start_sha256": _weights(ready.start) or None,
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


def reproduce(
    data: Path, out: Path, jobs: int, progress: Callable[[str], Progress]
) -> dict[str, Any]:
    """The shipped checkpoint again: stage one, drives of its own, stage two.

    Finished parts are kept beside ``out``: ``.first`` is stage one, ``.own`` its drives, ``.work``
    the state of a stage that was interrupted. Each records which weights it comes from.

    Args:
        data: what `wmrt collect` recorded.
        progress: gives the progress callback of a part, by its name.

    Raises:
        UsageError: a part does not come from the one before it (stage one was trained again, or by
            another version); the message names what to delete. Nothing is deleted here.
    """
    out = out.absolute()
    require_replaceable(out)
    first, own = out.with_name(out.name + ".first"), out.with_name(out.name + ".own")
    if first.exists():
        _require_stage_one(first)
    else:
        train(
            [data], first, SHIPPED.model, SHIPPED.train, limit=SHIPPED.episodes,
            progress=progress("stage one"),
        )  # fmt: skip
    show = progress("own drives")
    for _ in collect(
        SHIPPED.env, own, SHIPPED.own_episodes, SHIPPED.own_first_seed, jobs,
        lambda done, total: show(done, total, {}), ModelDriver(first),
    ):  # fmt: skip
        pass
    return train(
        [data, own], out, SHIPPED.model, SHIPPED.second, limit=SHIPPED.episodes, start=first,
        progress=progress("stage two"),
    )  # fmt: skip


def _require_stage_one(first: Path) -> None:
    """Raise `UsageError` unless ``first`` is a checkpoint of this very stage one."""
    found = load_checkpoint(first)
    episodes, config = found.provenance.get("episodes"), found.provenance.get("train")
    wanted = (SHIPPED.model.to_json(), SHIPPED.episodes, SHIPPED.train.to_json())
    if (found.model, episodes, config) != wanted:
        raise UsageError(
            f"{first} is another run than stage one; delete it, or choose another --out"
        )


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
