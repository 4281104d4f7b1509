"""The table of layers, the packed checkpoint's card, and the result file of ``wmrt quantize``."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from wmrt.cli.common import console

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint
    from wmrt.train.packing import Packed

_HEADINGS = (
    "layer",
    "form",
    "bytes before",
    "bytes",
    "weight SQNR, dB",
    "output error",
    "by rtn",
    "zeroed blocks",
)


def rows(source: Checkpoint, packed: Packed) -> list[dict[str, Any]]:
    """Per linear layer its form, its bytes before and after, and what packing did to it.

    sqnr_db is the power of the weight (as transformed) over that of the change, in dB;
    relative_error the RMS of the change over that of the weight; output_error and nearest_error
    those of the layer's output on held windows, by the steps and by round to nearest. All None
    where nothing was measured. zeroed_blocks counts blocks that were not zero and now are.
    """
    from wmrt.runtime.build import linears

    found = []
    for name, module in linears(packed.network).items():
        stored, recipe = source.tensors[f"{name}.weight"], module.recipe
        assert recipe is not None  # packing gave every linear one
        measured = packed.layers.get(name)
        error = None if measured is None else measured.relative_error
        found.append(
            {
                "layer": name,
                "form": recipe.weight_format,
                "bytes_before": stored.numel() * stored.element_size(),
                "bytes": module.packed_bytes(),
                "sqnr_db": None if error is None else -20 * math.log10(error),
                "relative_error": error,
                "output_error": None if measured is None else measured.output_error,
                "nearest_error": None if measured is None else measured.nearest_error,
                "zeroed_blocks": 0 if measured is None else measured.zeroed_blocks,
            }
        )
    return found


def size(checkpoint: Checkpoint) -> int:
    """Bytes of a checkpoint's tensors."""
    return sum(t.numel() * t.element_size() for t in checkpoint.tensors.values())


def results(
    source: Checkpoint, written: Checkpoint, packed: Packed, layers: list[dict[str, Any]]
) -> dict[str, Any]:
    """The ``results`` of the result file."""
    return {
        "layers": layers,
        "bytes": {"before": size(source), "after": size(written)},
        "zeroed_blocks": sum(row["zeroed_blocks"] for row in layers),
        "output_error": mean(layers, "output_error"),
        "nearest_error": mean(layers, "nearest_error"),
        "error": None if packed.model is None else asdict(packed.model),
        "exclusion": None if packed.exclusion is None else packed.exclusion.to_json(),
        "data": packed.provenance["data"],
        "seconds": packed.provenance["seconds"],
    }


def mean(layers: list[dict[str, Any]], key: str) -> float | None:
    """Mean over the layers in which ``key`` was measured."""
    held = [row[key] for row in layers if row[key] is not None]
    return sum(held) / len(held) if held else None


def card(name: str, source: Checkpoint, packed: Packed, layers: list[dict[str, Any]]) -> str:
    """README.md of the packed checkpoint, with the original's card below it."""
    table = "\n".join(f"| {' | '.join(_cells(row))} |" for row in layers)
    original = ""
    if source.path is not None and (source.path / "README.md").is_file():
        original = (source.path / "README.md").read_text("utf-8")
    recipe = packed.recipe
    return f"""# {name}, weights packed as {recipe.name}

Weights {recipe.weight_format} by {_method(packed)}, activations {recipe.activation}. Packed from
the weights with tree hash `{source.weights_sha256}`; results measured on those are not results of
these. {_grown(source)}{" ".join(_measured(packed, layers))}

| {" | ".join(_HEADINGS)} |
|{"---|" * len(_HEADINGS)}
{table}

---

{original}"""


def _grown(source: Checkpoint) -> str:
    from wmrt.model.grown import grown_note

    note = grown_note(source.provenance)
    return "" if note is None else f"**{note.capitalize()}.** "


def _method(packed: Packed) -> str:
    return f"`{packed.recipe.method}`" if packed.recipe.steps else "round to nearest"


def _measured(packed: Packed, layers: list[dict[str, Any]]) -> list[str]:
    """Sentences on the data and what was measured on it; none without data."""
    data, model = packed.provenance["data"], packed.model
    if data is None or model is None:
        return []
    first, last = data["episodes"]
    said = [
        f"Calibrated in {packed.provenance['seconds']} s on {data['windows']} windows of "
        f"{data['steps']} steps from {', '.join(data['folders'])}, episodes {first} to {last} "
        f"(SHA-256 `{data['sha256'][:16]}`); measured on {data['held_windows']} windows of other "
        "episodes."
    ]
    ours, nearest = mean(layers, "output_error"), mean(layers, "nearest_error")
    if ours is not None and nearest is not None:
        said.append(
            f"Mean layer output error {ours:.4f}, {nearest:.4f} by round to nearest (rtn). "
            f"RMS error of the hidden state {model.hidden:.4f}, of the decoded actions "
            f"{model.action:.4f}."
        )
    if packed.exclusion is not None:
        chosen = ", ".join(packed.exclusion.chosen) or "none"
        said.append(f"Left in bf16 within {packed.exclusion.budget:,} bytes: {chosen}.")
    return said


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    def number(key: str, digits: int) -> str:
        return "" if row[key] is None else f"{row[key]:.{digits}f}"

    return (
        row["layer"],
        row["form"],
        f"{row['bytes_before']:,}",
        f"{row['bytes']:,}",
        number("sqnr_db", 2),
        number("output_error", 4),
        number("nearest_error", 4),
        str(row["zeroed_blocks"]),
    )


def show(out: Path, results: dict[str, Any]) -> None:
    """The table of layers, as narrow as a terminal, and one line per total."""
    table = Table(box=None, pad_edge=False)
    for heading in ("layer", "form", "bytes", "SQNR, dB", "error", "by rtn", "zeroed"):
        table.add_column(heading, no_wrap=True)
    for row in results["layers"]:
        layer, form, _, *rest = _cells(row)
        table.add_row(layer, form, *rest)
    held, error = results["bytes"], results["error"]
    lines = [f"{out}: {held['before']:,} -> {held['after']:,} bytes in {results['seconds']} s"]
    ours, nearest = results["output_error"], results["nearest_error"]
    if error is not None and ours is not None and nearest is not None:
        lines.append(
            f"on windows not calibrated on: mean layer output error {ours:.4f} "
            f"({nearest:.4f} by rtn), hidden state {error['hidden']:.4f}, "
            f"decoded actions {error['action']:.4f}"
        )
    if results["exclusion"] is not None:
        chosen = ", ".join(results["exclusion"]["chosen"]) or "none; it did not help"
        lines.append(f"left in bf16: {chosen}")
    console().print(table)
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)
