"""Compile every registered kernel for every GPU it is meant for, without one, and judge the code.

    python tools/aot_check.py --json out/aot.json

Reads registers, stack, spills, barriers, the width of weight loads and the instructions a weight
costs, and compares them with kernels/tuned/aot_limits.json, as far as its rules are for the triton
that is installed, and with the results kept of the same compiler in benchmarks/aot. Falls short,
with status 1, where a limit is broken or a figure is worse than the kept one. ``--keep`` writes the
results there instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import console, falls_short, json_option, track, write_result
from wmrt.core.errors import UsageError, WmrtError
from wmrt.core.extras import require

SHOWN = ("registers", "stack_bytes", "local_accesses", "barriers")
KEPT = Path(__file__).resolve().parents[1] / "benchmarks" / "aot"


def kept_path() -> Path:
    """Where the results of the installed compiler are kept."""
    return KEPT / f"triton-{require('triton', 'cuda').__version__}.json"


def kept() -> list[dict[str, Any]]:
    """Rows that were kept of this compiler."""
    path = kept_path()
    rows: list[dict[str, Any]] = []
    if path.is_file():
        rows = json.loads(path.read_text("utf-8"))["results"]["rows"]
    return rows


def kept_rows() -> dict[tuple[str, int], dict[str, Any]]:
    """Kept figures by case and capability; empty if none were kept of this compiler."""
    return {(row["case"], row["capability"]): row["figures"] for row in kept()}


def merged(rows: Sequence[dict[str, Any]], cases: Sequence[Any]) -> list[dict[str, Any]]:
    """New rows beside the kept ones of other cases that there still are, in the order of cases."""
    found = {(row["case"], row["capability"]): row for row in (*kept(), *rows)}
    pairs = [(case.name, target) for case in cases for target in case.targets]
    return [found[pair] for pair in pairs if pair in found]


def check(
    pairs: Iterable[tuple[Any, int]],
    limits: Any,
    kept: Mapping[tuple[str, int], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """One row for each case and capability: its figures, and what they break."""
    from wmrt.kernels.triton import aot, aot_limits

    rows = []
    with aot.fresh_cache():
        for case, capability in pairs:
            figures = aot.measure(aot.compile_case(case, capability))
            before = kept.get((case.name, capability))
            worse = [] if before is None else aot_limits.regressions(figures, before)
            rows.append(
                {
                    "case": case.name,
                    "capability": capability,
                    "figures": figures,
                    "violations": limits.violations(case, capability, figures),
                    "regressions": worse,
                }
            )
    return rows


def chosen(cases: Sequence[Any], names: Sequence[str], targets: Sequence[int]) -> list[Any]:
    """Cases by pattern with the capabilities asked for, or all of theirs.

    Raises:
        UsageError: a pattern or a capability that no case has.
    """
    for name in names:
        if not any(fnmatchcase(case.name, name) for case in cases):
            raise UsageError(f"--case {name!r}: there are {', '.join(c.name for c in cases)}")
    known = sorted({target for case in cases for target in case.targets})
    unknown = sorted(set(targets) - set(known))
    if unknown:
        raise UsageError(f"--target {unknown[0]}: kernels are made for {known}")
    return [
        (case, target)
        for case in cases
        if not names or any(fnmatchcase(case.name, name) for name in names)
        for target in case.targets
        if not targets or target in targets
    ]


def assembled(pairs: Sequence[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Those that the installed triton has an assembler for; says which capability it lacks."""
    from wmrt.kernels.triton import library

    version = library.triton_version()
    for target in sorted({target for _, target in pairs}):
        if not library.assembles(target, version):
            click.echo(f"left out: this triton has no assembler for sm_{target}", err=True)
    return [pair for pair in pairs if library.assembles(pair[1], version)]


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table (LDL: spills; bits: of the narrowest load of weights; i/w: instructions a weight),
    and in words what is broken."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("case", "sm", "regs", "stack", "LDL", "bar", "bits", "i/w", "s", ""):
        table.add_column(title, justify="left" if title in ("case", "") else "right", no_wrap=True)
    for row in rows:
        figures = row["figures"]
        per_weight = figures["instructions_per_weight"]
        table.add_row(
            row["case"],
            str(row["capability"]),
            *(str(figures[name]) for name in SHOWN),
            str(figures["weight_load_bits"] or ""),
            "" if per_weight is None else f"{per_weight:.2f}",
            f"{figures['seconds']:.2f}",
            "broken" if row["violations"] else "worse" if row["regressions"] else "ok",
        )
    console().print(table)
    for row in rows:
        for text in (*row["violations"], *row["regressions"]):
            line = f"{row['case']} sm_{row['capability']}: {text}"
            console().print(line, markup=False, soft_wrap=True)


def results_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    seconds = sum(row["figures"]["seconds"] for row in rows)
    return {"rows": rows, "seconds": round(seconds, 2)}


@click.command(epilog="Example: python tools/aot_check.py --case 'rms_norm*' --target 87")
@click.option("--case", "names", multiple=True, metavar="PATTERN", help="Cases of such names only.")
@click.option("--target", "targets", multiple=True, type=int, help="Such capabilities only.")
@click.option(
    "--keep",
    is_flag=True,
    help="Keep the results as those of this compiler; other cases keep theirs.",
)
@json_option
def main(
    names: tuple[str, ...], targets: tuple[int, ...], keep: bool, json_path: Path | None
) -> None:
    """Compile kernels for GPUs that are not here and compare the code with its limits."""
    from wmrt.kernels.triton import aot_cases, aot_limits

    cases = aot_cases.cases()
    limits = aot_limits.Limits.read()
    unused = limits.unused(cases)
    if unused:
        raise UsageError(f"exceptions of {aot_limits.PATH} that no case has: {', '.join(unused)}")
    pairs = assembled(chosen(cases, names, targets))
    click.echo(f"triton {limits.triton}: {len(pairs)} compilations", err=True)
    rows = check(track(pairs, "compiling"), limits, {} if keep else kept_rows())
    show(rows)
    write_result(json_path, results_of(rows))
    if keep:
        KEPT.mkdir(parents=True, exist_ok=True)
        rows = merged(rows, cases)
        write_result(kept_path(), results_of(rows))
    bad = [f"{r['case']} sm_{r['capability']}" for r in rows if r["violations"] or r["regressions"]]
    if bad:
        falls_short(f"{len(bad)} of {len(rows)} compilations: {', '.join(bad)}")


if __name__ == "__main__":
    try:
        main()
    except WmrtError as error:
        click.echo(f"aot_check: error: {error}", err=True)
        sys.exit(2)
