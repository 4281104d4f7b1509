"""``wmrt quantize``: store a checkpoint's weights in 4 or 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from wmrt.cli.common import json_option, out_option, progress, write_result
from wmrt.core.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from wmrt.model.checkpoint import Checkpoint
    from wmrt.quant import Recipe
    from wmrt.quant.calibrate import Progress
    from wmrt.train.samples import Calibration

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(
    epilog="Example: wmrt quantize highway --recipe nvfp4 --steps best --data data/highway "
    "--out runs/highway-nvfp4"
)
@click.argument("model", metavar="MODEL")
@click.option("--recipe", required=True, metavar="RECIPE", help="nvfp4, mxfp4, w4a8, ...")
@click.option(
    "--steps",
    default="rtn",
    show_default=True,
    metavar="STEPS",
    help="How codes are found: rtn (to nearest), best (measured best for the format), some of "
    "hadamard,awq,smoothquant,four-over-six,clip,gptq,rescale, or a JSON file of steps or of a "
    "recipe.",
)
@click.option(
    "--data",
    multiple=True,
    type=_FOLDER,
    metavar="DIR",
    help="Episodes of wmrt collect to calibrate and to measure on; may be given again.",
)
@click.option(
    "--windows",
    default=512,
    show_default=True,
    type=click.IntRange(1),
    help="Windows of the model's memory to calibrate on; memory and time grow with them (128 for "
    "a model of a billion parameters).",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the draw.")
@click.option(
    "--budget",
    metavar="SIZE",
    help="Leave in bf16 the layers that matter most, within this size: bytes, or 1.1x the packed.",
)
@click.option(
    "--layout",
    default="canonical",
    show_default=True,
    metavar="LAYOUT",
    help="Order the packed weights are stored in, so that a kernel that reads it repacks nothing: "
    "canonical, cpu_interleaved, gpu_gemv, cublas_128x4.",
)
@out_option(beside=True, required=True, help="Checkpoint folder.")
@json_option
def command(
    model: str,
    recipe: str,
    steps: str,
    data: tuple[Path, ...],
    windows: int,
    seed: int,
    budget: str | None,
    layout: str,
    out: Path,
    json_path: Path | None,
) -> None:
    """Store the weights of MODEL (a packaged name, a folder, or owner/name) in 4 or 8 bits.

    Loading the result packs nothing. The layer table is measured on episodes that calibration does
    not use.
    """
    from wmrt.cli.quantizing import report
    from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
    from wmrt.runtime.build import require_layout, to_checkpoint
    from wmrt.train.packing import pack

    chosen = _recipe(recipe, steps)
    require_layout(chosen, layout)
    source = _source(model, out)
    calibration = _calibration(source, chosen, data, windows, seed, needed=budget is not None)
    with progress() as bar, _Parts(bar) as parts:
        packed = pack(source, chosen, calibration, budget, parts)
    name = model if source.path is None else source.path.name  # whose disk it lay on is no matter
    origin = {"model": name, "weights_sha256": source.weights_sha256, **packed.provenance}
    provenance = {**source.provenance, "packed_from": origin}
    layers = report.rows(source, packed)
    stored = to_checkpoint(packed.network, packed.recipe, provenance, layout)
    save_checkpoint(out, stored, card=report.card(name, source, packed, layers))
    written = load_checkpoint(out, verify="always")
    results = {**report.results(source, written, packed, layers), "layout": layout}
    report.show(out, results)
    write_result(
        json_path,
        results,
        model=str(out),
        model_sha256=written.weights_sha256,
        recipe=recipe,
        resolved=packed.recipe.to_json(),
    )


def _recipe(name: str, steps: str) -> Recipe:
    """The recipe with its steps; a JSON file may hold either."""
    from wmrt.quant import get_recipe
    from wmrt.quant.best import best_steps
    from wmrt.quant.steps import parse_steps

    recipe = get_recipe(name)
    if not recipe.packs:
        raise UsageError(f"--recipe {name} packs nothing; the checkpoint stores it as it is")
    if steps == "best":
        return recipe.with_(steps=best_steps(recipe.weight_format))
    if steps.endswith(".json") or Path(steps).is_file():
        return _read(recipe, Path(steps))
    return recipe.with_(steps=parse_steps(steps))


def _read(recipe: Recipe, file: Path) -> Recipe:
    """Steps (a JSON list) or a whole recipe (an object) for the formats of ``recipe``."""
    import json

    from wmrt.quant import Recipe as Reader
    from wmrt.quant.steps import step_from_json

    try:
        held = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--steps {file}: not readable as JSON: {error}") from None
    if isinstance(held, list):
        return recipe.with_(steps=tuple(step_from_json(step) for step in held))
    given = Reader.from_json(held)
    if not given.executes(recipe):
        raise UsageError(
            f"--steps {file} is for {given.weight_format} weights and {given.activation} "
            f"activations; --recipe {recipe.name} is another"
        )
    return recipe.with_(steps=given.steps, exclude=given.exclude)


def _source(model: str, out: Path) -> Checkpoint:
    """The checkpoint to pack. What stands in the way is told before the work."""
    from wmrt.model.checkpoint import load_checkpoint, require_replaceable

    source = load_checkpoint(model)
    if source.quantization is not None:
        raise UsageError(f"{model} is packed already; give the checkpoint it was packed from")
    if source.path is not None and out.resolve() == source.path.resolve():
        raise UsageError(f"--out {out} is {model} itself; its weights would be lost")
    require_replaceable(out.absolute())
    return source


def _calibration(
    source: Checkpoint,
    recipe: Recipe,
    data: tuple[Path, ...],
    windows: int,
    seed: int,
    *,
    needed: bool,
) -> Calibration | None:
    from wmrt.model.config import ModelConfig
    from wmrt.train.samples import load_samples

    if not data:
        reading = [step.kind for step in recipe.steps if step.needs_data]
        reading += ["--budget"] * needed
        if reading:
            raise UsageError(
                f"{', '.join(reading)}: recorded episodes are needed; give --data DIR, "
                "a folder of wmrt collect"
            )
        return None
    return load_samples(
        data,
        source.schema,
        len(source.actions),
        windows=windows,
        steps=ModelConfig.from_json(source.model).window,
        seed=seed,
    )


class _Parts:
    """One progress line per part of the run, naming the layer just done."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:  # the error stays one line: a stopped bar leaves one of its own
            self._bar.live.transient = True
            self._bar.live.stop()
            self._bar.disable = True

    def __call__(self, name: str) -> Progress:
        task = self._bar.add_task(name, total=None)

        def show(done: int, total: int, layer: str) -> None:
            self._bar.update(task, completed=done, total=total, description=f"{name} {layer}")

        return show
