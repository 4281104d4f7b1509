"""``wmrt quantize``: store a checkpoint's weights in 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from wmrt.cli.common import console, json_option, write_result
from wmrt.core.errors import UsageError

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint
    from wmrt.quant import Recipe


@click.command(epilog="Example: wmrt quantize highway --recipe nvfp4 --out runs/highway-nvfp4")
@click.argument("model", metavar="MODEL")
@click.option("--recipe", required=True, metavar="RECIPE", help="nvfp4, mxfp4, w4a8, ...")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Checkpoint folder to write.",
)
@json_option
def command(model: str, recipe: str, out: Path, json_path: Path | None) -> None:
    """Store the weights of MODEL (a packaged name, a folder, or owner/name) in 4 bits.

    Loading the result packs nothing, and computes what the original computes under that recipe.
    """
    from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
    from wmrt.quant import get_recipe
    from wmrt.runtime.build import build_network, to_checkpoint
    from wmrt.runtime.checks import resolve_device

    chosen = get_recipe(recipe)
    if not chosen.packs:
        raise UsageError(f"--recipe {recipe} packs nothing; the checkpoint stores it as it is")
    source = load_checkpoint(model)
    if source.quantization is not None:
        raise UsageError(f"{model} is packed already; give the checkpoint it was packed from")
    if source.path is not None and out.resolve() == source.path.resolve():
        raise UsageError(f"--out {out} is {model} itself; its weights would be lost")
    network = build_network(source, chosen, resolve_device("cpu")).network
    origin = {"model": model, "weights_sha256": source.weights_sha256}
    provenance = {**source.provenance, "packed_from": origin}
    packed = to_checkpoint(network, chosen, provenance)
    layers = layer_errors(source, network)
    save_checkpoint(out, packed, card=card(model, source, chosen, layers))
    written = load_checkpoint(out, verify="always")
    results = {"layers": layers, "bytes": {"before": size(source), "after": size(written)}}
    _show(out, results)
    write_result(
        json_path,
        results,
        model=str(out),
        model_sha256=written.weights_sha256,
        recipe=recipe,
        resolved=chosen.to_json(),
    )


def layer_errors(source: Checkpoint, network: Any) -> list[dict[str, Any]]:
    """Per linear layer its form, its bytes, and the RMS of what rounding changed over the RMS of
    the weight (None for a layer left in bf16)."""
    from wmrt.runtime.build import linears

    rows = []
    for name, module in linears(network).items():
        error = None
        if module.recipe.packs:
            weight = source.tensors[f"{name}.weight"].float()
            change = module.quantized().dequantize() - weight
            error = float(change.square().mean().sqrt() / weight.square().mean().sqrt())
        rows.append(
            {
                "layer": name,
                "form": module.recipe.weight_format,
                "bytes": module.packed_bytes(),
                "relative_error": error,
            }
        )
    return rows


def size(checkpoint: Checkpoint) -> int:
    """Bytes of a checkpoint's tensors."""
    return sum(t.numel() * t.element_size() for t in checkpoint.tensors.values())


def card(model: str, source: Checkpoint, recipe: Recipe, layers: list[dict[str, Any]]) -> str:
    """README.md of the packed checkpoint, with the original's card below it."""
    rows = "\n".join(
        f"| {row['layer']} | {row['form']} | {row['bytes']:,} | {_percent(row)} |" for row in layers
    )
    original = ""
    if source.path is not None and (source.path / "README.md").is_file():
        original = (source.path / "README.md").read_text("utf-8")
    return f"""# {model}, weights packed as {recipe.name}

Weights {recipe.weight_format} by round to nearest, activations {recipe.activation}. Packed from
weights with tree hash {source.weights_sha256}; results measured on those are not results of these.

| layer | form | bytes | RMS error of the weight |
|---|---|---|---|
{rows}

---

{original}"""


def _percent(row: dict[str, Any]) -> str:
    return "" if row["relative_error"] is None else f"{row['relative_error']:.2%}"


def _show(out: Path, results: dict[str, Any]) -> None:
    table = Table("layer", "form", "bytes", "RMS error")
    for row in results["layers"]:
        table.add_row(row["layer"], row["form"], f"{row['bytes']:,}", _percent(row))
    held = results["bytes"]
    console().print(table)
    console().print(f"{out}: {held['before']:,} -> {held['after']:,} bytes", markup=False)
