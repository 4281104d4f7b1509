"""The tables of ``wmrt gates``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wmrt.cli.text import printable
from wmrt.train.gates import Gate

NAMES = {"G1": "execution", "G2": "quality", "G3": "capacity", "G4": "speed"}


def show(console: Console, title: str, gates: Mapping[str, Gate]) -> None:
    """Verdict and reason of each gate, then what quality was judged by."""
    table = Table("gate", "verdict", "because", title=printable(title), title_justify="left")
    table.columns[1].no_wrap = True
    for name, gate in gates.items():
        cells = (f"{name} {NAMES[name]}", gate.verdict, printable(gate.reason))
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)
    for line in _details(gates):
        console.print(line, markup=False, soft_wrap=True)


def _details(gates: Mapping[str, Gate]) -> Iterator[str]:
    left_out: dict[str, list[str]] = {}
    for row in gates["G1"].evidence.get("linears", ()):
        if row["excluded"]:
            left_out.setdefault(row["excluded"], []).append(row["layer"])
    for reason, layers in left_out.items():
        yield f"left in bf16: {', '.join(layers)} ({reason})"
    opened = gates["G2"].evidence.get("open_loop")
    if opened and "missing" not in opened:
        yield from _open_loop(opened)


def _open_loop(opened: Mapping[str, Any]) -> Iterator[str]:
    if opened["layers"] is None:
        yield f"weights and layers: not comparable ({opened['layers_reason']})"
    elif opened["layers"]:
        rows = opened["layers"]
        sqnr = [row["sqnr_db"] for row in rows if row["sqnr_db"] is not None]
        output = [row["output_error"] for row in rows]
        if sqnr:
            yield f"weight SQNR: {min(sqnr):.2f} to {max(sqnr):.2f} dB"
        mean = sum(output) / len(output)
        yield f"layer output error: mean {mean:.4f}, {min(output):.4f} to {max(output):.4f}"
    action = opened["action"]
    yield (
        f"actions against bf16, of [-1, 1]: first {action['first_rms']:.4f} RMS, "
        f"chunk {action['chunk_rms']:.4f}, largest {action['chunk_max']:.3f}"
    )
    for mine, theirs in zip(opened["packed"], opened["bf16"], strict=True):
        yield (
            f"next state, {mine['steps']} steps ahead: {mine['model']:.3f}, bf16 "
            f"{theirs['model']:.3f}, persistence {mine['persistence']:.3f} standard deviations"
        )
