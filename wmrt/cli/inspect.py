"""``wmrt inspect``: show what a checkpoint holds, and where its bytes go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from wmrt.cli.common import console, falls_short, json_option, write_result
from wmrt.cli.text import finite, printable

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint
    from wmrt.model.fields import Column

#: How far the estimate and the weight file may be apart.
FILE_BOUND = 0.01


@click.command(epilog="Example: wmrt inspect highway --recipe nvfp4 --tensors")
@click.argument("model", metavar="MODEL")
@click.option("--tensors", "list_tensors", is_flag=True, help="List every tensor and its bytes.")
@click.option("--recipe", metavar="RECIPE", help="Also show what MODEL would take under RECIPE.")
@click.option(
    "--resident",
    is_flag=True,
    help="Run it in a process of its own and measure the memory it keeps.",
)
@click.option("--verify", is_flag=True, help="Hash the weights again, whatever is remembered.")
@json_option
def command(
    model: str,
    list_tensors: bool,
    recipe: str | None,
    resident: bool,
    verify: bool,
    json_path: Path | None,
) -> None:
    """Show what MODEL (a packaged name, a folder, or owner/name) holds, and where its bytes go.

    A checkpoint that is damaged, or not exactly what its configuration records, is an error. Bytes
    estimated from configuration and recipe alone stand beside those of the file; more than 1%
    between them ends with status 1.
    """
    from wmrt.cli.ledgers import account, would_take
    from wmrt.model.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(model, verify="always" if verify else "cached")
    results = {**describe(checkpoint), **account(checkpoint, resident, recipe)}
    results["would_take"] = None if recipe is None else would_take(checkpoint, recipe)
    _show(results, list_tensors)
    stored = results["recipe"]
    write_result(
        json_path,
        results,
        model=model,
        model_sha256=checkpoint.weights_sha256,
        recipe=None if stored is None else stored["name"],
    )
    off = results["file"]["difference"] / results["file"]["bytes"]
    if abs(off) > FILE_BOUND:
        falls_short(f"the ledger is {off:+.2%} off the file, allowed are {FILE_BOUND:.0%}")


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything a checkpoint records, as JSON data; tensors by name, dtype, shape and bytes."""
    listed = [
        {
            "tensor": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "bytes": tensor.numel() * tensor.element_size(),
        }
        for name, tensor in checkpoint.tensors.items()
    ]
    quantization = finite(checkpoint.quantization or {})
    return {
        "path": checkpoint.path,
        "weights_sha256": checkpoint.weights_sha256,
        "bytes": sum(row["bytes"] for row in listed),
        "recipe": quantization.get("recipe"),
        "layout": quantization.get("layout"),
        "schema": {"name": checkpoint.schema.name, "hash": checkpoint.schema.hash},
        "fields": [_field(column) for column in checkpoint.schema.columns],
        "actions": checkpoint.actions.to_json(),
        "model": checkpoint.model,
        "provenance": finite(checkpoint.provenance),
        "tensors": listed,
    }


def _field(column: Column) -> dict[str, Any]:
    numeric = column.kind == "numeric"
    return {
        "field": column.name,
        "kind": column.kind,
        "unit": column.unit,
        "low": column.low if numeric else None,
        "high": column.high if numeric else None,
        "decimals": column.decimals if numeric else None,
        "values": list(column.values),
        "codes": column.size,
        "required": column.required,
    }


def _field_row(row: dict[str, Any]) -> dict[str, Any]:
    """A field as people read it: what is allowed in one column."""
    allowed = ", ".join(row["values"])
    if row["kind"] == "numeric":
        allowed = f"{row['low']} to {row['high']} {row['unit']}, {row['decimals']} decimals"
    return {
        "field": row["field"],
        "kind": row["kind"],
        "allowed": allowed,
        "codes": row["codes"],
        "required": row["required"],
    }


def _show(results: dict[str, Any], list_tensors: bool) -> None:
    from wmrt.quant.ledger import COLUMNS

    summary = Table(show_header=False, box=None, pad_edge=False)
    summary.add_column(style="bold", no_wrap=True)
    summary.add_column(overflow="fold")
    for label, value in _summary(results):
        summary.add_row(Text(printable(label)), Text(printable(value)))
    console().print(summary)
    _table([_field_row(row) for row in results["fields"]])
    _table(results["actions"])
    if list_tensors:
        would = results["would_take"]
        rows = results["entries"] if would is None else would["entries"]
        _table([_entry_row(row, COLUMNS) for row in rows])


def _entry_row(row: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    sizes = {column: row[column]["bytes"] for column in columns}
    return {"tensor": row["name"], "format": row["format"], **sizes}


def _summary(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from wmrt.cli.ledgers import lines

    recipe, schema = results["recipe"], results["schema"]
    yield "checkpoint", str(results["path"])
    yield "weights", f"{len(results['tensors'])} tensors, {results['bytes']:,} bytes"
    yield from lines(results)
    yield "sha256 tree", str(results["weights_sha256"])
    stored = "float (any recipe runs)"
    if recipe is not None:
        stored = f"packed as {recipe['name']}, layout {results['layout']}"
    yield "stored", stored
    yield "model", ", ".join(f"{key} {value}" for key, value in results["model"].items())
    yield "schema", f"{schema['name']}, {len(results['fields'])} columns, hash {schema['hash']}"
    for key, value in results["provenance"].items():
        if not isinstance(value, (dict, list)):
            yield key, str(value)


def _table(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table()
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row.values()))
    console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else ""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
