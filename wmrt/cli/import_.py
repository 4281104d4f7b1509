"""``wmrt import``: packed weights from a file of another tool, as a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wmrt.cli.common import console, json_option, out_option, write_result
from wmrt.core.errors import UsageError

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint
    from wmrt.quant.interchange import Interchanged


@click.command(epilog="Example: wmrt import runs/highway-ct --like highway --out runs/highway-back")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--like", required=True, metavar="MODEL", help="Whose schema and network they fit.")
@out_option(beside=True, required=True, help="Checkpoint to write.")
@click.option(
    "--recipe", metavar="RECIPE", help="To run under; else as exported, or the format's own."
)
@click.option(
    "--round-scales",
    is_flag=True,
    help="Let int4 scales that are no float16 values become the nearest.",
)
@json_option
def command(
    folder: Path,
    like: str,
    out: Path,
    recipe: str | None,
    round_scales: bool,
    json_path: Path | None,
) -> None:
    """Read DIR, a compressed-tensors folder, into a checkpoint of MODEL's schema and network.

    All weights are those of the file, and its names must be exactly those of the network. Nothing
    is quantized again: codes and scales are the file's, bit for bit.
    """
    from wmrt.model.checkpoint import load_checkpoint, require_replaceable, save_checkpoint
    from wmrt.quant.interchange import read_compressed_tensors
    from wmrt.runtime.interchange import import_weights, recipe_of

    require_replaceable(out.absolute())
    model = load_checkpoint(like)
    if model.path is not None and out.resolve() == model.path.resolve():
        raise UsageError(f"--out {out} is {like} itself; its weights would be lost")
    file = read_compressed_tensors(folder, round_scales=round_scales)
    chosen = recipe_of(file, recipe)
    provenance = _provenance(folder, file, model, round_scales)
    made = import_weights(file, model, chosen, provenance)
    save_checkpoint(out, made, card=_card(out.name, provenance["imported_from"], chosen.name))
    written = load_checkpoint(out, verify="always")
    results = {"layers": sorted(file.weights), "others": len(file.others), **provenance}
    console().print(
        f"{out}: {len(file.weights)} packed layers of {folder}, to run under {chosen.name}",
        markup=False,
        soft_wrap=True,
    )
    write_result(
        json_path,
        results,
        model=str(out),
        model_sha256=written.weights_sha256,
        recipe=recipe or chosen.name,
        resolved=chosen.to_json(),
    )


def _provenance(
    folder: Path, file: Interchanged, like: Checkpoint, round_scales: bool
) -> dict[str, Any]:
    """Where the weights are from. Of `like` only its world is taken: its results are of others."""
    from wmrt.model.tree_hash import tree_hash
    from wmrt.quant.interchange.files import WEIGHTS_FILE
    from wmrt.runtime.interchange import RECORD

    weights, record = folder / WEIGHTS_FILE, file.config.get(RECORD)
    origin = {
        "folder": folder.resolve().name,
        "format": file.config["quantization_config"]["quant_method"],
        "version": file.config["quantization_config"]["version"],
        "weights_sha256": tree_hash(weights) if weights.is_file() else None,
        "rounded_scales": round_scales,
        "exported_from": record,
        "like": {
            "model": None if like.path is None else like.path.name,
            "weights_sha256": like.weights_sha256,
        },
    }
    world = ("env", "period")
    kept = {key: value for key, value in like.provenance.items() if key in world}
    return {**kept, "imported_from": origin}


def _card(name: str, origin: dict[str, Any], recipe: str) -> str:
    return f"""# {name}, weights imported

From the {origin["format"]} {origin["version"]} folder `{origin["folder"]}` (tree hash of its
weights: `{origin["weights_sha256"]}`), bit for bit, to run under {recipe}. Schema and network are
those of `{origin["like"]["model"]}`; results measured on that model are not results of these
weights.
"""
