"""``wmrt quantize``: store a checkpoint's weights in 4 bits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from wmrt.cli.common import console, json_option, track, write_result
from wmrt.core.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from wmrt.model.checkpoint import Checkpoint
    from wmrt.quant import QuantizedTensor, Recipe


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
    from wmrt.model.checkpoint import load_checkpoint, require_replaceable, save_checkpoint
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
    require_replaceable(out.absolute())
    network = build_network(source, chosen, resolve_device("cpu")).network
    name = model if source.path is None else source.path.name  # whose disk it lay on is no matter
    origin = {"model": name, "weights_sha256": source.weights_sha256}
    provenance = {**source.provenance, "packed_from": origin}
    packed = to_checkpoint(network, chosen, provenance)
    layers = layer_errors(source, network)
    save_checkpoint(out, packed, card=card(name, source, chosen, layers))
    written = load_checkpoint(out, verify="always")
    results = {
        "layers": layers,
        "bytes": {"before": size(source), "after": size(written)},
        "zeroed_blocks": sum(row["zeroed_blocks"] for row in layers),
    }
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
    """Per linear layer its form, its bytes before and after, and what rounding did to its weight.

    sqnr_db is the power of the weight over that of the change, in dB, and relative_error the RMS of
    the change over that of the weight: both None where nothing changed. zeroed_blocks counts blocks
    that were not zero and now are.
    """
    from wmrt.runtime.build import linears

    rows = []
    for name, module in track(linears(network).items(), "measuring"):
        stored, recipe = source.tensors[f"{name}.weight"], module.recipe
        assert recipe is not None  # `build_network` gave every linear one
        row = {
            "layer": name,
            "form": recipe.weight_format,
            "bytes_before": stored.numel() * stored.element_size(),
            "bytes": module.packed_bytes(),
            "sqnr_db": None,
            "relative_error": None,
            "zeroed_blocks": 0,
        }
        if recipe.packs:
            row |= _rounding(stored.float(), module.quantized())
        rows.append(row)
    return rows


def _rounding(weight: Tensor, packed: QuantizedTensor) -> dict[str, Any]:
    """Measured on what is stored, not taken from the code that packed it."""
    from torch.nn.functional import pad

    from wmrt.quant.formats import decode_scales, split

    change = float((packed.dequantize() - weight).square().mean().sqrt())
    power = float(weight.square().mean().sqrt())
    blocks = split(pad(weight, (0, packed.codes.shape[1] * 2 - weight.shape[1])), packed.spec.block)
    step = decode_scales(packed.scales, packed.spec) * packed.global_scale
    zeroed = (step == 0) & (blocks.abs().amax(-1) > 0)
    found: dict[str, Any] = {"zeroed_blocks": int(zeroed.sum())}
    if change > 0 and power > 0:
        found |= {
            "relative_error": change / power,
            "sqnr_db": 20 * math.log10(power / change),
        }
    return found


def size(checkpoint: Checkpoint) -> int:
    """Bytes of a checkpoint's tensors."""
    return sum(t.numel() * t.element_size() for t in checkpoint.tensors.values())


def card(name: str, source: Checkpoint, recipe: Recipe, layers: list[dict[str, Any]]) -> str:
    """README.md of the packed checkpoint, with the original's card below it."""
    rows = "\n".join(f"| {' | '.join(_cells(row))} |" for row in layers)
    original = ""
    if source.path is not None and (source.path / "README.md").is_file():
        original = (source.path / "README.md").read_text("utf-8")
    return f"""# {name}, weights packed as {recipe.name}

Weights {recipe.weight_format} by round to nearest, activations {recipe.activation}. Packed from
the weights with tree hash `{source.weights_sha256}`; results measured on those are not results of
these.

| {" | ".join(_HEADINGS)} |
|{"---|" * len(_HEADINGS)}
{rows}

---

{original}"""


_HEADINGS = ("layer", "form", "bytes before", "bytes", "weight SQNR, dB", "zeroed blocks")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    sqnr = "" if row["sqnr_db"] is None else f"{row['sqnr_db']:.2f}"
    sizes = f"{row['bytes_before']:,}", f"{row['bytes']:,}"
    return row["layer"], row["form"], *sizes, sqnr, str(row["zeroed_blocks"])


def _show(out: Path, results: dict[str, Any]) -> None:
    table = Table(*_HEADINGS)
    table.columns[0].no_wrap = True
    for row in results["layers"]:
        table.add_row(*_cells(row))
    held = results["bytes"]
    console().print(table)
    console().print(
        f"{out}: {held['before']:,} -> {held['after']:,} bytes", markup=False, soft_wrap=True
    )
