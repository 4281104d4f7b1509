"""``wmrt export``: a packed checkpoint in the form other tools read, or compiled kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wmrt.cli.common import console, json_option, out_option, track, write_result
from wmrt.core.errors import UsageError

if TYPE_CHECKING:
    from wmrt.runtime.interchange import Exported


@click.command(
    epilog="Example: wmrt export runs/highway-nvfp4 --to compressed-tensors --out runs/highway-ct"
)
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Choice(["compressed-tensors", "cubins"]),
    help="Form: MODEL's weights, or GPU kernels for machines without triton.",
)
@click.option(
    "--capability",
    "capabilities",
    multiple=True,
    type=int,
    metavar="CC",
    help="With cubins: compute capability, such as 87 (again for more); all without it.",
)
@click.option(
    "--preset",
    metavar="NAME",
    help="With cubins: sizes of the step that is listed launch by launch; 1.3b without it.",
)
@click.option(
    "--recipe", metavar="NAME", help="With cubins: form of its weights; nvfp4 without it."
)
@click.option(
    "--step-only", is_flag=True, help="With cubins: leave out kernels that this step has not."
)
@out_option(beside=True, required=True, help="Folder to write; it must not be there yet.")
@json_option
def command(
    model: str | None,
    target: str,
    capabilities: tuple[int, ...],
    preset: str | None,
    recipe: str | None,
    step_only: bool,
    out: Path,
    json_path: Path | None,
) -> None:
    """Write the packed checkpoint MODEL for other tools: the same codes and scales, bit for bit.

    Every linear layer keeps its name; all other tensors are written as they are. wmrt import reads
    the result back. With --to cubins, which takes no MODEL, the GPU kernels are compiled instead,
    with a manifest that tells how to launch each, and one step launch by launch.
    """
    if target == "cubins":
        if model is not None:
            raise UsageError(f"MODEL {model!r}: cubins hold kernels, no weights; leave it out")
        _cubins(out, capabilities, (preset or "1.3b", recipe or "nvfp4"), step_only, json_path)
        return
    if model is None:
        raise UsageError(f"--to {target} needs the MODEL to write")
    own = {"capability": capabilities, "preset": preset, "recipe": recipe, "step-only": step_only}
    for name, value in own.items():
        if value:
            raise UsageError(f"--{name} is for --to cubins, not for {target}")
    _weights(model, target, out, json_path)


def _cubins(
    out: Path,
    capabilities: tuple[int, ...],
    step: tuple[str, str],
    step_only: bool,
    json_path: Path | None,
) -> None:
    from wmrt.core.extras import require

    require("triton", "cuda")
    from wmrt.kernels.triton import aot_cases
    from wmrt.kernels.triton.cubins import require_absent, write_package
    from wmrt.model.config import preset as sizes
    from wmrt.quant import get_recipe
    from wmrt.runtime import step_launches

    every = [(case, target) for case in aot_cases.cases() for target in case.targets]
    known = sorted({target for _, target in every})
    for number in capabilities:
        if number not in known:
            raise UsageError(f"--capability {number}: kernels are made for {known}")
    wanted = sorted(set(capabilities) or known)
    pairs = [(case, target) for case, target in every if target in wanted and not step_only]
    require_absent(out)
    sizes(step[0]), get_recipe(step[1])  # an unknown name is found before anything is said
    console(stderr=True).print(f"writing down the launches of {' '.join(step)}", markup=False)
    steps = step_launches.preset_steps(*step, wanted)
    try:
        manifest = write_package(out, pairs, steps, lambda given: track(given, "compiling"))
    except BaseException:  # Ctrl-C too
        console(stderr=True).print(f"{out}: not whole, so it was removed", markup=False)
        raise
    entries = manifest["kernels"]
    size = sum(entry["bytes"] for entry in entries)
    told = f"{out}: {len(entries)} kernels, {size:,} bytes; {len(steps)} steps of {' '.join(step)}"
    console().print(told, markup=False, soft_wrap=True)
    write_result(json_path, {"kernels": entries, "bytes": size}, resolved={"to": "cubins"})


def _weights(model: str, target: str, out: Path, json_path: Path | None) -> None:
    from wmrt.model.checkpoint import load_checkpoint
    from wmrt.quant.interchange import write_compressed_tensors
    from wmrt.quant.interchange.files import WEIGHTS_FILE, require_new
    from wmrt.runtime.interchange import RECORD, export

    require_new(out)
    source = load_checkpoint(model)
    made = export(source)
    name = model if source.path is None else source.path.name  # whose disk it lay on is no matter
    record = {
        "model": name,
        "weights_sha256": source.weights_sha256,
        "recipe": made.recipe.to_json(),
    }
    config = {"model_type": "wmrt", RECORD: record}
    write_compressed_tensors(out, made.weights, made.others, config=config, ignore=made.ignore)
    results = _results(made, (out / WEIGHTS_FILE).stat().st_size)
    _show(out, target, results)
    write_result(
        json_path,
        results,
        model=model,
        model_sha256=source.weights_sha256,
        recipe=made.recipe.name,
        resolved={"to": target},
    )


def _results(made: Exported, size: int) -> dict[str, Any]:
    layers = [
        {"layer": name, "format": q.format, "rows": q.shape[0], "columns": q.shape[1]}
        for name, q in made.weights.items()
    ]
    tails = [n for n, q in made.weights.items() if q.spec.width(q.shape[1]) != q.shape[1]]
    return {"layers": layers, "kept": len(made.others), "tails": tails, "bytes": size}


def _show(out: Path, target: str, results: dict[str, Any]) -> None:
    tell = console()
    tell.print(
        f"{out}: {len(results['layers'])} packed layers and {results['kept']} other tensors for "
        f"{target}, {results['bytes']:,} bytes",
        markup=False,
        soft_wrap=True,
    )
    if results["tails"]:
        tell.print(
            f"columns of {', '.join(results['tails'])} are no multiple of the block: {target} 0.20 "
            "refuses to decompress such layers",
            markup=False,
            soft_wrap=True,
        )
