"""Where a checkpoint's bytes go: measured, estimated, in memory, and what they say to people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wmrt.cli.text import printable

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint
    from wmrt.quant.ledger import Ledger

_STORED = {"payload": "codes", "scales": "scales", "padding": "padding", "excluded": "not packed"}
_HELD = ("held", "originals", "ring", "workspace")


def account(checkpoint: Checkpoint, resident: bool, recipe: str | None) -> dict[str, Any]:
    """Keys ``ledger`` (measured), ``estimate`` (of the same from configuration and recipe alone),
    ``entries`` (the ledger's row per tensor), ``file``, and ``resident``, which is None unless
    asked for: measured by a process that runs the checkpoint, under ``recipe`` if given."""
    from wmrt.model.locate import WEIGHTS_FILE
    from wmrt.model.weight_file import measured_overhead
    from wmrt.quant.ledger import Figure
    from wmrt.runtime.capacity import estimate, measure, stored_layout, stored_recipe

    assert checkpoint.path is not None  # it was loaded
    weights = checkpoint.path / WEIGHTS_FILE
    header = Figure(measured_overhead(weights), "measured")
    measured = replace(measure(checkpoint), overhead=header)
    estimated = estimate(checkpoint, stored_recipe(checkpoint), stored_layout(checkpoint))
    size, guess = weights.stat().st_size, estimated.file.bytes
    assert guess is not None  # nothing of a file's estimate can be missing
    return {
        "ledger": totals(measured),
        "estimate": totals(estimated),
        "entries": measured.to_json()["tensors"],
        "file": {
            "bytes": size,
            "header": header.bytes,
            "estimated": guess,
            "difference": guess - size,
            "difference_percent": 100 * (guess - size) / size,
        },
        "resident": _resident(checkpoint, recipe) if resident else None,
    }


def would_take(checkpoint: Checkpoint, recipe: str) -> dict[str, Any]:
    """What the checkpoint's network would take under ``recipe``: totals, and a row per tensor."""
    from wmrt.runtime.capacity import estimate

    ledger = estimate(checkpoint, recipe)
    return {"recipe": recipe, **totals(ledger), "entries": ledger.to_json()["tensors"]}


def totals(ledger: Ledger) -> dict[str, Any]:
    """The ledger's figures less its rows, and less what a file cannot tell."""
    rest = ("tensors", "zeroed_blocks")
    return {key: value for key, value in ledger.to_json().items() if key not in rest}


def _resident(checkpoint: Checkpoint, recipe: str | None) -> dict[str, Any]:
    """Memory a process keeps, and the ledger's total with that process's workspace. A packed
    checkpoint runs as it is packed, whatever else is asked about."""
    from wmrt.quant.ledger import Figure
    from wmrt.runtime.capacity import estimate, stored_layout, stored_recipe
    from wmrt.runtime.probe import probe

    assert checkpoint.path is not None  # it was loaded
    asked = recipe if checkpoint.quantization is None else None
    found: dict[str, Any] = probe(checkpoint.path, recipe=asked)["resident"]
    ledger = estimate(checkpoint, asked or stored_recipe(checkpoint), stored_layout(checkpoint))
    total = replace(ledger, workspace=Figure(**found["workspace"])).total
    measured = found["resident"]["bytes"]
    known = measured is not None and total.bytes is not None
    ratio = measured / total.bytes if known else None
    return {**found, "ledger": total.to_json(), "ratio": ratio}


def lines(results: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Label and text of each line of `account` and `would_take`."""
    ledger, file = results["ledger"], results["file"]
    yield "of these", ", ".join(_figure(ledger, key) for key in _STORED)
    yield "file", f"{file['bytes']:,} bytes, its header {file['header']:,} of them"
    off = f"{file['difference']:+,} bytes, {file['difference_percent']:+.3f}%"
    yield "estimated", f"{file['estimated']:,} bytes of configuration and recipe ({off})"
    yield "in memory", ", ".join(_figure(ledger, key) for key in _HELD)
    yield "a step reads", _read(ledger, results["entries"])
    resident = results["resident"]
    if resident is not None:
        yield "resident", _memory(resident)
    would = results["would_take"]
    if would is not None:
        stored = ", ".join(_figure(would, key) for key in _STORED)
        yield f"as {would['recipe']}", f"{_figure(would, 'file')}: {stored}"
        yield "", ", ".join(_figure(would, key) for key in _HELD[:-1])
        yield "", f"a step reads {_read(would, would['entries'])}"


def _figure(ledger: Mapping[str, Any], key: str) -> str:
    figure = ledger[key]
    size = "" if figure["bytes"] is None else f" {figure['bytes']:,}"
    how = "" if figure["how"] == "measured" else f" ({figure['how']})"
    return f"{_STORED.get(key, 'weights' if key == 'held' else key)}{size}{how}"


def _read(ledger: Mapping[str, Any], entries: list[dict[str, Any]]) -> str:
    """The floor's bytes, and the tensors it reads in part."""
    part = [
        f"{printable(row['name'])} {row['read']['bytes']:,}"
        for row in entries
        if 0 < row["read"]["bytes"] < row["held"]["bytes"]
    ]
    said = f"{ledger['step']['bytes']:,} bytes ({ledger['step']['how']})"
    return f"{said}; of {', '.join(part)} only" if part else said


def _memory(resident: Mapping[str, Any]) -> str:
    measured, ledger = resident["resident"]["bytes"], resident["ledger"]["bytes"]
    if measured is None or ledger is None:
        return "missing: this system keeps no account of it"
    workspace = resident["workspace"]["bytes"]
    return (
        f"{measured:,} bytes after {resident['steps']} steps, ledger {ledger:,} with a workspace "
        f"of {workspace:,} ({resident['ratio']:.2f}x)"
    )
