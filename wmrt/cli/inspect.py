"""``wmrt inspect``: show what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from wmrt.cli.common import console, json_option, write_result

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint
    from wmrt.model.fields import Column


@click.command(epilog="Example: wmrt inspect highway --tensors")
@click.argument("model", metavar="MODEL")
@click.option("--tensors", "list_tensors", is_flag=True, help="List every tensor.")
@click.option("--verify", is_flag=True, help="Hash the weights again, whatever is remembered.")
@json_option
def command(model: str, list_tensors: bool, verify: bool, json_path: Path | None) -> None:
    """Show what MODEL (a packaged name, a folder, or owner/name) holds.

    A checkpoint that is damaged, or not exactly what its configuration records, is an error.
    """
    from wmrt.model.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(model, verify="always" if verify else "cached")
    results = describe(checkpoint)
    summary = Table(show_header=False, box=None, pad_edge=False)
    summary.add_column(style="bold", no_wrap=True)
    summary.add_column(overflow="fold")
    for label, value in _summary(results):
        summary.add_row(label, Text(value))
    console().print(summary)
    _table(results["fields"])
    _table(results["actions"])
    if list_tensors:
        _table(results["tensors"])
    recipe = results["recipe"]
    write_result(
        json_path,
        results,
        model=model,
        model_sha256=checkpoint.weights_sha256,
        recipe=None if recipe is None else recipe["name"],
    )


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything a checkpoint records, as JSON data; tensors by name, dtype, shape and bytes."""
    tensors = checkpoint.tensors.items()
    listed = [
        {
            "tensor": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "bytes": tensor.numel() * tensor.element_size(),
        }
        for name, tensor in tensors
    ]
    return {
        "path": checkpoint.path,
        "weights_sha256": checkpoint.weights_sha256,
        "bytes": sum(row["bytes"] for row in listed),
        "recipe": (checkpoint.quantization or {}).get("recipe"),
        "schema": {"name": checkpoint.schema.name, "hash": checkpoint.schema.hash},
        "fields": [_field(column) for column in checkpoint.schema.columns],
        "actions": checkpoint.actions.to_json(),
        "model": checkpoint.model,
        "provenance": checkpoint.provenance,
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


def _summary(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    recipe, schema = results["recipe"], results["schema"]
    yield "checkpoint", str(results["path"])
    yield "weights", f"{len(results['tensors'])} tensors, {results['bytes']:,} bytes"
    yield "sha256 tree", str(results["weights_sha256"])
    stored = "float (any recipe runs)" if recipe is None else f"packed as {recipe['name']}"
    yield "stored", stored
    yield "model", ", ".join(f"{key} {value}" for key, value in results["model"].items())
    yield "schema", f"{schema['name']}, {len(results['fields'])} columns, hash {schema['hash']}"
    for key, value in results["provenance"].items():
        if not isinstance(value, (dict, list)):
            yield key, str(value)


def _table(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else ""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
