"""What a service does while something around it fails: one line for each fault.

    python -m tools.service_faults --json benchmarks/service_faults.json

Each fault is made against one process that also serves a robot that must not notice: its answers
are its own observation's canary (tools/canary.py), its actions safe, its steps in a row. After each
fault the process has to be alive, its memory and descriptors back, and no reply may have held a
traceback or a path. ``kill -9`` and SIGTERM are that robot's faults too: it resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from tools import faults_access, faults_network, faults_process, faults_tls, faults_wire
from tools.fault_case import Case, Row, Scene, run
from tools.service_rig import robot, serving
from wmrt.cli.common import console, falls_short, json_option, track, write_result

CASES: tuple[Case, ...] = (
    *faults_access.CASES,
    *faults_wire.CASES,
    *faults_network.CASES,
    *faults_process.CASES,
    *faults_tls.CASES,
)
SETTINGS: dict[str, Any] = {
    "robots": 16, "connections": 64, "ping": 1.0, "hold": 2.0, "idle": 0.0,
    "snapshots": "robots", "snapshot_every": 0.3, "audit": "audit.jsonl",
}  # fmt: skip


def matrix(cases: Sequence[Case], patience: float | None, long: bool) -> list[Row]:
    """One process, one bystander, and the faults one after the other.

    Args:
        patience: seconds that slow peers get; None for what `wmrt serve` gives them.
    """
    own = [] if patience is None else ["--patience", str(patience)]
    waits = 10.0 if patience is None else patience
    with serving(*own, **SETTINGS) as service, robot(service.unix, "by") as by:
        scene = Scene(service, by, waits, long)
        return [run(one, scene) for one in track(cases, "faults")]


def show(rows: Sequence[Row]) -> None:
    table = Table("fault", "expected", "seen", "recovery, s", "lost", "mixed", "wrong")
    for row in rows:
        took = "" if row.recovery_s is None else f"{row.recovery_s:.2f}"
        table.add_row(
            *(row.fault, row.expected, row.seen, took, str(row.actions_lost)),
            *(str(row.mixed + row.unsafe), row.wrong),
        )
    console().print(table)


@click.command(epilog="Example: python -m tools.service_faults --only 'slow'")
@click.option("--only", help="Faults whose name holds this.")
@click.option("--patience", type=float, help="Seconds for slow peers. Default: as served, 10.")
@click.option("--short", is_flag=True, help="Less of each.")
@json_option
def main(only: str | None, patience: float | None, short: bool, json_path: Path | None) -> None:
    """Make every fault, and say what was seen."""
    cases = [one for one in CASES if only is None or only in one.fault]
    if not cases:
        raise click.UsageError(f"no fault holds {only!r}: {', '.join(c.fault for c in CASES)}")
    rows = matrix(cases, patience, not short)
    show(rows)
    wrong = [row.fault for row in rows if row.wrong]
    write_result(json_path, {"rows": [asdict(row) for row in rows], "wrong": wrong})
    if wrong:
        falls_short(f"not as expected: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
