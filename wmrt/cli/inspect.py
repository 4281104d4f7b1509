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
    from wmrt.quant.ledger import Ledger


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
    _table([_field_row(row) for row in results["fields"]])
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
        "ledger": _ledger(checkpoint),
        "recipe": (checkpoint.quantization or {}).get("recipe"),
        "schema": {"name": checkpoint.schema.name, "hash": checkpoint.schema.hash},
        "fields": [_field(column) for column in checkpoint.schema.columns],
        "actions": checkpoint.actions.to_json(),
        "model": checkpoint.model,
        "provenance": checkpoint.provenance,
        "tensors": listed,
    }


def _ledger(checkpoint: Checkpoint) -> dict[str, Any]:
    """Where the bytes go; the ring is what one robot's session adds. Builds a packed checkpoint, so
    one that does not fit its own configuration is an error."""
    import torch

    from wmrt.quant.ledger import Figure, Ledger
    from wmrt.runtime.build import build_network, linears

    packed = {}
    if checkpoint.quantization is not None:
        network = build_network(checkpoint, None, torch.device("cpu")).network
        packed = {n: m.quantized() for n, m in linears(network).items() if m.weight is None}
    parts = {f"{name}.{part}" for name, weight in packed.items() for part in weight.tensors()}
    others = {name: t for name, t in checkpoint.tensors.items() if name not in parts}
    ring = Figure(_ring_bytes(checkpoint), "estimated")
    return _totals(Ledger.of(packed, others, ring=ring))


def _ring_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of one robot's past states, from the configuration alone."""
    import torch

    from wmrt.model.config import ModelConfig
    from wmrt.model.network import Network

    config = ModelConfig.from_json(checkpoint.model)
    with torch.device("meta"):
        network = Network(checkpoint.schema, config, checkpoint.actions)
    return network.new_ring().nbytes


def _totals(ledger: Ledger) -> dict[str, Any]:
    """The ledger less what `tensors` lists already, and less what a file cannot tell."""
    rest = ("tensors", "zeroed_blocks")
    return {key: value for key, value in ledger.to_json().items() if key not in rest}


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


def _summary(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    recipe, schema = results["recipe"], results["schema"]
    yield "checkpoint", str(results["path"])
    yield "weights", f"{len(results['tensors'])} tensors, {results['bytes']:,} bytes"
    yield "of these", ", ".join(_figure(results["ledger"], key) for key in _WEIGHTS)
    yield "a session", ", ".join(_figure(results["ledger"], key) for key in ("ring", "workspace"))
    yield "sha256 tree", str(results["weights_sha256"])
    stored = "float (any recipe runs)" if recipe is None else f"packed as {recipe['name']}"
    yield "stored", stored
    yield "model", ", ".join(f"{key} {value}" for key, value in results["model"].items())
    yield "schema", f"{schema['name']}, {len(results['fields'])} columns, hash {schema['hash']}"
    for key, value in results["provenance"].items():
        if not isinstance(value, (dict, list)):
            yield key, str(value)


_WEIGHTS = {"payload": "codes", "scales": "scales", "padding": "padding", "excluded": "not packed"}


def _figure(ledger: dict[str, Any], key: str) -> str:
    figure = ledger[key]
    size = "" if figure["bytes"] is None else f" {figure['bytes']:,}"
    how = "" if figure["how"] == "measured" else f" ({figure['how']})"
    return f"{_WEIGHTS.get(key, key)}{size}{how}"


def _table(rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    table = Table()
    for name in rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else ""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
