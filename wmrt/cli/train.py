"""``wmrt train``: a checkpoint from recorded episodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wmrt.cli.common import console, json_option, out_option, progress, write_result
from wmrt.core.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from wmrt.model.config import ModelConfig
    from wmrt.train.trainer import Progress, TrainConfig


@click.command(epilog="Example: wmrt train --reproduce --data data/highway --out runs/highway")
@click.option(
    "--data",
    default=(Path("data/highway"),),
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    show_default=True,
    help="Folder of the recording. May be given again: half of all windows are then drawn from "
    "the later ones.",
)
@click.option(
    "--start",
    default=None,
    type=click.Path(path_type=Path),
    metavar="MODEL",
    help="Go on from this checkpoint, with its schema and statistics.",
)
@out_option(beside=True, required=True, help="Checkpoint folder.")
@click.option("--reproduce", is_flag=True, help="The shipped model's run; excludes what follows.")
@click.option("--preset", default=None, help="Model size: tiny, mini, small (default), 1.3b.")
@click.option("--selector", default=None, help="learned (default), full, recent, random.")
@click.option("--past", default=None, type=click.IntRange(0), help="Past states each layer reads.")
@click.option("--steps", default=None, type=click.IntRange(1), help="Optimiser steps.")
@click.option("--batch", default=None, type=click.IntRange(1), help="Windows per step.")
@click.option("--lr", default=None, type=click.FloatRange(0, min_open=True), help="Peak rate.")
@click.option("--seed", default=None, type=click.IntRange(0))
@click.option(
    "--occlusion",
    default=None,
    type=click.FloatRange(0),
    help="Switch sensor groups off half the time, with this mean dwell in seconds; 0 for none.",
)
@click.option("--threads", default=None, type=click.IntRange(1), help="CPU threads.")
@click.option(
    "--jobs", default=2, show_default=True, type=click.IntRange(1), help="Driving processes."
)
@json_option
def command(
    data: tuple[Path, ...],
    out: Path,
    reproduce: bool,
    threads: int | None,
    jobs: int,
    json_path: Path | None,
    **given: Any,
) -> None:
    """Train a world model on recorded episodes. A run that was interrupted continues."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    chosen = {name: value for name, value in given.items() if value is not None}
    if reproduce and chosen:
        names = ", ".join(f"--{name}" for name in chosen)
        raise UsageError(f"--reproduce fixes the run; leave out {names}")
    with progress() as bar:
        result = _run(data, out, chosen if not reproduce else None, jobs, _Parts(bar))
    losses = "  ".join(f"{name} {value:.4f}" for name, value in result["validation"].items())
    console().print(
        f"{out}: {result['parameters']:,} parameters, {result['seconds']} s; held back: {losses}"
    )
    write_result(json_path, result, model=str(out))


def _run(
    data: tuple[Path, ...], out: Path, chosen: dict[str, Any] | None, jobs: int, part: _Parts
) -> dict[str, Any]:
    """The shipped run (``chosen`` is None), or one with the options chosen."""
    from wmrt.train.pipeline import reproduce, train

    if chosen is None:
        if len(data) > 1:
            raise UsageError("--reproduce takes one --data; it records the model's drives itself")
        return reproduce(data[0], out, jobs, part)
    start = chosen.get("start")
    shape = [f"--{name}" for name in ("preset", "selector", "past") if name in chosen]
    if start is not None and shape:
        raise UsageError(f"--start {start} brings its own network; leave out {', '.join(shape)}")
    model, config = _configs(chosen, data[0])
    return train(data, out, model, config, start=start, progress=part("training"))


_TRAIN = ("steps", "batch", "lr", "seed")


class _Parts:
    """One progress line per part of the run."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def __call__(self, name: str) -> Progress:
        """A progress callback for the part ``name``."""
        task = self._bar.add_task(name, total=None)

        def show(done: int, total: int, losses: dict[str, float]) -> None:
            now = "".join(f" {k} {losses[k]:.3f}" for k in ("action", "state") if k in losses)
            self._bar.update(task, completed=done, total=total, description=name + now)

        return show


def _configs(chosen: dict[str, Any], data: Path) -> tuple[ModelConfig, TrainConfig]:
    from dataclasses import replace

    from wmrt.model.config import preset
    from wmrt.train.dataset import Meta
    from wmrt.train.trainer import TrainConfig

    meta = Meta.read(data)
    shape = {k: chosen[k] for k in ("selector", "past") if k in chosen}
    model = preset(chosen.get("preset", "small")).with_(chunk=meta.horizon, **shape)
    changes: dict[str, Any] = {k: chosen[k] for k in _TRAIN if k in chosen}
    if "occlusion" in chosen:
        changes["occlusion_dwell"] = chosen["occlusion"] / meta.period
    return model, replace(TrainConfig(), **changes)
