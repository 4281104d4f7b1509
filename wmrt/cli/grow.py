"""``wmrt grow``: a large checkpoint that drives as a trained small one does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wmrt.cli.common import console, falls_short, json_option, out_option, progress, write_result
from wmrt.core.errors import UsageError

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint
    from wmrt.train.grow import Grown
    from wmrt.train.grow_check import Report
    from wmrt.train.grow_walk import Progress, Streams

_FOLDER = click.Path(file_okay=False, path_type=Path)
#: Robots that see random states, and those that see recorded ones.
ROBOTS, RECORDED = 2, 1


@click.command(epilog="Example: wmrt grow highway --preset 1.3b --out runs/highway-1.3b")
@click.argument("model", metavar="MODEL")
@click.option(
    "--preset",
    required=True,
    metavar="PRESET",
    help="Size to grow to. Its widths have to be multiples of MODEL's that grow can fill, as those "
    "of 1.3b are of small's.",
)
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the weights it adds."
)
@click.option(
    "--data",
    multiple=True,
    type=_FOLDER,
    metavar="DIR",
    help="Episodes of wmrt collect to check on, beside random states; may be given again.",
)
@click.option(
    "--check-steps",
    default=None,
    type=click.IntRange(1),
    metavar="N",
    help="Steps to compare with MODEL; by default twice the model's memory and half of it again.",
)
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    metavar="RECIPE",
    help="Compare both models under this recipe too, once around the model's memory (slow; "
    "reported, not judged); may be given again.",
)
@out_option(beside=True, required=True, help="Checkpoint folder to write.")
@json_option
def command(
    model: str,
    preset: str,
    seed: int,
    data: tuple[Path, ...],
    check_steps: int | None,
    recipes: tuple[str, ...],
    out: Path,
    json_path: Path | None,
) -> None:
    """Expand MODEL (a packaged name, a folder, or owner/name) into a larger network that computes
    the same actions.

    It has the small model's policy and no added skill: a size nobody has trained, to run and to
    measure while it really drives. What the check refuses is not written.
    """
    from wmrt.model.checkpoint import load_checkpoint, require_replaceable, save_checkpoint
    from wmrt.model.config import ModelConfig
    from wmrt.model.config import preset as named
    from wmrt.quant import get_recipe
    from wmrt.train.grow import prepare

    begin, config = time.perf_counter(), named(preset)
    for recipe in recipes:
        get_recipe(recipe)
    source = load_checkpoint(model)
    if source.path is not None and out.resolve() == source.path.resolve():
        raise UsageError(f"--out {out} is {model} itself; its weights would be lost")
    require_replaceable(out.absolute())
    prepare(source, config)
    steps = check_steps or 5 * ModelConfig.from_json(source.model).window // 2
    streams = _streams(source, data, steps, seed)
    made, report, packed = _work(source, preset, seed, streams, recipes)
    name = model if source.path is None else source.path.name  # whose disk it lay on is no matter
    recorded = [folder.resolve().name for folder in data]
    found = {"model": name, "data": recorded, "check": report.to_json(), "recipes": packed}
    made.checkpoint.provenance["grown_from"].update(found)
    if not report.failures:
        save_checkpoint(out, made.checkpoint, card=card(name, made, report))
    _finish(out, made, report, time.perf_counter() - begin, json_path)


def _work(
    source: Checkpoint, preset: str, seed: int, streams: Streams, recipes: tuple[str, ...]
) -> tuple[Grown, Report, dict[str, Any]]:
    """Grow and check, with a progress line for each part."""
    from dataclasses import asdict

    from wmrt.model.config import preset as named
    from wmrt.train.grow import grow
    from wmrt.train.grow_check import check, compare

    with progress() as bar:

        def line(name: str) -> Progress:
            task = bar.add_task(name, total=None)

            def show(done: int, total: int, part: str) -> None:
                bar.update(task, completed=done, total=total, description=f"{name} {part}")

            return show

        made = grow(source, preset, named(preset), seed, line("growing"))
        report = check(source, made.checkpoint, streams, line("checking"))
        few = streams.first(5 * report.window // 4)
        packed = {
            recipe: asdict(compare(source, made.checkpoint, few, recipe, line(recipe)))
            for recipe in recipes
        }
    return made, report, packed


def _finish(out: Path, made: Grown, report: Report, seconds: float, json_path: Path | None) -> None:
    from wmrt.model.checkpoint import load_checkpoint
    from wmrt.quant.resident import peak_resident

    written = not report.failures
    results = {
        "parameters": made.checkpoint.provenance["parameters"],
        "note": made.checkpoint.provenance["grown"],
        **made.checkpoint.provenance["grown_from"],
        "bytes": (out / "model.safetensors").stat().st_size if written else None,
        "seconds": seconds,
        "peak_rss": peak_resident().to_json(),
    }
    sha256 = load_checkpoint(out).weights_sha256 if written else None
    write_result(json_path, results, model=str(out), model_sha256=sha256)
    if not written:
        falls_short(f"{'; '.join(report.failures)}; nothing was written")
    console().print(_line(out, results), markup=False, soft_wrap=True)


def _streams(source: Checkpoint, data: tuple[Path, ...], steps: int, seed: int) -> Streams:
    """Random states, and with ``data`` recorded windows one after the other."""
    from wmrt.model.config import ModelConfig
    from wmrt.train.grow_walk import Streams, random_streams
    from wmrt.train.samples import load_samples

    actions = len(source.actions)
    streams = random_streams(source.schema, actions, ROBOTS, steps, seed)
    if not data:
        return streams
    window = ModelConfig.from_json(source.model).window
    each = -(-steps // window)
    needed = RECORDED * each
    found = load_samples(data, source.schema, actions, windows=needed, steps=window, seed=seed).used
    if len(found) < needed:
        raise UsageError(
            f"--data holds {len(found)} windows of {window} steps to check on, {steps} steps need "
            f"{needed}; record more, or give fewer --check-steps"
        )
    joined = (
        t.reshape(RECORDED, each * window, *t.shape[2:])[:, :steps]
        for t in (found.codes, found.values, found.previous)
    )
    return streams.joined(Streams(*joined))


def card(name: str, made: Grown, report: Report) -> str:
    """README.md of a grown checkpoint."""
    model, origin = made.checkpoint.model, made.checkpoint.provenance["grown_from"]
    found = report.float32
    kept = ", ".join(f"{key} {own}" for key, (_, own) in origin["kept"].items()) or "nothing else"
    return f"""# {name}, grown to {origin["preset"]}

**The same policy as `{name}`, no added skill.** Nothing was trained. The weights of `{name}` (tree
hash `{origin["weights_sha256"]}`) were expanded so that the larger network computes the same
actions; what drives well or badly here is the small model. It is for running and measuring a
network of this size while it really drives.

{made.checkpoint.provenance["parameters"]:,} parameters: d_model {model["d_model"]},
{model["layers"]} layers, {model["heads"]} heads ({model["kv_heads"]} KV), FFN {model["ffn"]}. Seed
{origin["seed"]}. Layers {", ".join(map(str, origin["layers"]))} hold the source's; the others write
what no reader sees. States, actions and {kept} are the source's.

Checked when it was written, in float32 over {report.steps} steps of {report.robots} robots (memory
of {report.window} steps): actions within {found.action:.1e} of the source's, whole chunks within
{found.chunk:.1e}; at most {report.most_zeros.zeros:.2%} exact zeros in a matrix, no zero row or
column; every layer changes the residual stream.
"""


def _line(out: Path, results: dict[str, Any]) -> str:
    peak = results["peak_rss"]["bytes"]
    memory = "missing" if peak is None else f"{peak / 1e9:.2f} GB"
    found = results["check"]
    action = found["float32"]["action"]
    return (
        f"{out}: {results['parameters']:,} parameters, {results['bytes']:,} bytes; "
        f"{results['note']}. Actions within {action:.1e} over {found['steps']} steps of "
        f"{found['robots']} robots; {results['seconds']:.1f} s, peak memory {memory}"
    )
