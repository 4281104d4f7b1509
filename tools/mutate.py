"""Mutation testing: whether the tests of a package notice when a line of it is changed.

    python tools/mutate.py wmrt/safety tests/safety --explained tests/safety/mutants.json

Every operator, constant, condition, call and statement is changed, one at a time
(tools/mutations.py), and the tests have to fail. A change that nothing can notice goes, with the
reason, into the file given by --explained; any other survivor ends the run with status 1, and so
does an explanation that nothing needs any more.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tools.mutation_runs import Suite
from tools.mutations import Mutant, enumerations, mutants
from wmrt.cli.common import console, falls_short, json_option, progress, write_result
from wmrt.core import machine
from wmrt.core.errors import UsageError, WmrtError

ROOT = Path(__file__).resolve().parents[1]


def read(root: Path, package: str) -> dict[str, ast.Module]:
    """Syntax trees of a package's files, by path relative to the root."""
    files = sorted((root / package).glob("*.py"))
    if not files:
        raise UsageError(f"{package}: no Python files there; give a folder such as wmrt/safety")
    return {str(f.relative_to(root)): ast.parse(f.read_text("utf-8")) for f in files}


def explained(path: Path | None) -> dict[str, str]:
    """Reason by name of the mutants that nothing can notice.

    Raises:
        UsageError: a reason that is missing, or a mutant named twice.
    """
    if path is None:
        return {}
    reasons: dict[str, str] = {}
    for entry in json.loads(path.read_text("utf-8"))["equivalent"]:
        for name in entry["mutants"]:
            if not entry["reason"].strip() or name in reasons:
                raise UsageError(f"{path}: {name} needs one entry, with a reason")
            reasons[name] = entry["reason"]
    return reasons


def judge(suite: Suite, chosen: Sequence[Mutant], workers: int) -> dict[str, str]:
    """``killed``, ``timeout`` or ``survived`` by name."""
    with progress(auto_refresh=False) as bar:  # a thread that draws would not survive a fork
        task = bar.add_task("mutants", total=len(chosen))

        def done() -> None:
            bar.advance(task)
            bar.refresh()

        inside = [mutant for mutant in chosen if mutant.code]
        found = suite.in_place(inside, workers, done)
        verdicts: dict[str, str] = found["verdicts"]
        again = [m for m in chosen if verdicts.get(m.name, "unsure") == "unsure"]
        bar.update(task, total=len(inside) + len(again))
        verdicts |= suite.afresh(again, workers, done, found["files"], found["seconds"])
    return verdicts


def summary(
    chosen: Sequence[Mutant], verdicts: Mapping[str, str], reasons: Mapping[str, str]
) -> dict[str, Any]:
    """Counts by file and by kind of change, the survivors with their reasons."""
    survivors = [m.name for m in chosen if verdicts[m.name] == "survived"]
    count = Counter(verdicts.values())
    return {
        "mutants": len(chosen),
        "killed": count["killed"],
        "timeout": count["timeout"],
        "explained": {name: reasons[name] for name in survivors if name in reasons},
        "unexplained": [name for name in survivors if name not in reasons],
        "needless": sorted(set(reasons) - set(survivors)),
        "by_file": _counts(chosen, verdicts, "file"),
        "by_operator": _counts(chosen, verdicts, "operator"),
    }


def _counts(
    chosen: Sequence[Mutant], verdicts: Mapping[str, str], key: str
) -> dict[str, dict[str, int]]:
    table: dict[str, Counter[str]] = {}
    for mutant in chosen:
        table.setdefault(getattr(mutant, key), Counter())[verdicts[mutant.name]] += 1
    return {name: dict(sorted(row.items())) for name, row in sorted(table.items())}


def complaint(results: Mapping[str, Any]) -> str | None:
    """What is wrong with a result, in one line."""
    if results["unexplained"]:
        first = results["unexplained"][0]
        return f"{len(results['unexplained'])} mutants survive without a reason, such as {first}"
    if results["needless"]:
        return f"{len(results['needless'])} reasons are needless, such as {results['needless'][0]}"
    return None


@click.command(epilog="Example: python tools/mutate.py wmrt/safety tests/safety --json out.json")
@click.argument("package")
@click.argument("tests")
@click.option("--explained", "table", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--leave-out", multiple=True, metavar="ID", help="A test that takes too long for it.")
@click.option("--jobs", type=click.IntRange(1), default=machine.usable_cpus, metavar="N")
@click.option("--root", type=click.Path(file_okay=False, path_type=Path), default=ROOT, hidden=True)
@click.option("--only", default="", metavar="TEXT", help="Mutants whose name holds TEXT.")
@json_option
def main(
    package: str,
    tests: str,
    table: Path | None,
    leave_out: tuple[str, ...],
    jobs: int,
    root: Path,
    only: str,
    json_path: Path | None,
) -> None:
    """Change every line of PACKAGE, one change at a time; the tests in TESTS have to notice."""
    began = time.monotonic()
    trees = read(root, package)
    enums = enumerations(list(trees.values()))
    chosen = [m for file, tree in trees.items() for m in mutants(tree, file, enums)]
    chosen = [mutant for mutant in chosen if only in mutant.name]
    if not chosen:
        raise UsageError(f"--only {only}: no mutant of {package} has that in its name")
    verdicts = judge(Suite(root, tests, trees, leave_out), chosen, jobs)
    reasons = {k: v for k, v in explained(table).items() if only in k}
    results = {"package": package, "tests": tests, **summary(chosen, verdicts, reasons)}
    results["seconds"] = round(time.monotonic() - began, 1)
    out = console()
    for name in results["unexplained"]:
        out.print(f"survived: {name}", markup=False, soft_wrap=True)
    out.print(
        f"{results['mutants']} mutants, {results['killed']} killed, {results['timeout']} ran out "
        f"of time, {len(results['explained'])} equivalent, {len(results['unexplained'])} survived; "
        f"{results['seconds']:.0f} s"
    )
    write_result(json_path, results)
    short = complaint(results)
    if short is not None:
        falls_short(short)


if __name__ == "__main__":
    # The same tests each time, in the same order of sets, so that a result can be repeated.
    same = {"WMRT_TEST_SEED": "0", "WMRT_FULL": "0", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    if not same.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | same)
    try:
        main()
    except WmrtError as error:
        click.echo(f"mutate: error: {error}", err=True)
        sys.exit(2)
