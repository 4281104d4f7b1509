"""``wmrt calibrate``: what the prediction monitor takes for usual."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import console, json_option, track, write_result
from wmrt.core.errors import UsageError


@click.command(
    epilog="Example: wmrt calibrate runs/highway --data data/own --recipe nvfp4, after "
    "wmrt collect --model runs/highway --seed 200000 --episodes 150 --out data/own"
)
@click.argument("model", metavar="MODEL")
@click.option(
    "--data",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Recording of drives like those to be watched, best by the model itself.",
)
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    metavar="RECIPE",
    help="Recipe to calibrate (again for more). Default: nvfp4, or what a packed checkpoint "
    "stores.",
)
@click.option(
    "--false-alarms",
    default=0.03,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Chance of an alarm in a drive without a fault.",
)
@click.option(
    "--threads", default=1, show_default=True, type=click.IntRange(1), help="That step the model."
)
@click.option(
    "--out",
    default=None,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write. Default: monitor.json beside MODEL's weights.",
)
@json_option
def command(
    model: str,
    data: Path,
    recipes: tuple[str, ...],
    false_alarms: float,
    threads: int,
    out: Path | None,
    json_path: Path | None,
) -> None:
    """Calibrate the prediction monitor of MODEL: how far off its next states usually are, and from
    when on a difference is a fault. Drives it was trained on would make it too strict."""
    from wmrt.control import calibration
    from wmrt.model.locate import MONITOR_FILE, resolve_checkpoint

    target = resolve_checkpoint(model) / MONITOR_FILE if out is None else out
    made = _calibrate(model, data, recipes, false_alarms, threads)
    calibration.save(target, made)
    for one in made:
        rate = one.false_alarms
        console().print(
            f"{one.recipe}: at most {rate['per_drive']:g} false alarms per drive "
            f"({rate['per_step']:.1g} a step), from {rate['drives_for_threshold']} drives"
        )
    console().print(f"wrote {target}", markup=False, soft_wrap=True)
    write_result(
        json_path,
        calibration.document(made),
        model=model,
        model_sha256=made[0].model_sha256,
        recipe=", ".join(one.recipe for one in made),
    )


def _calibrate(
    model: str, data: Path, recipes: tuple[str, ...], false_alarms: float, threads: int
) -> list[Any]:
    from wmrt.model.checkpoint import load_checkpoint
    from wmrt.runtime import WorldModel
    from wmrt.train.dataset import Meta, load_episodes
    from wmrt.train.residuals import calibrate

    checkpoint = load_checkpoint(model)
    meta, episodes = Meta.read(data), load_episodes(data)
    packed = checkpoint.quantization is not None
    wanted: list[str | None] = [*recipes] or [None if packed else "nvfp4"]
    if len(set(wanted)) < len(wanted):
        raise UsageError(f"--recipe {', '.join(map(str, wanted))}: give each once")
    made = []
    for recipe in track(wanted, "calibrating"):
        world = WorldModel.from_checkpoint(checkpoint, recipe=recipe, threads=threads)
        made.append(calibrate(world, episodes, meta, false_alarms))
    return made
