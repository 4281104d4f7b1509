"""Look at a whole step for what keeps it from being captured as a CUDA Graph, without a GPU.

    python tools/graph_lint.py --preset 1.3b --recipe nvfp4 --json out/lint.json

The step runs once on tensors that hold nothing and say they are on a CUDA device. Falls short, with
status 1, where a capture would fail or repeat something wrong; allocations are counted beside that.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import console, falls_short, json_option, write_result
from wmrt.core.errors import WmrtError

#: Operators shown by name; the file of ``--json`` has all.
SHOWN = 12


def look(preset: str, recipe: str, batch: int, step: str = "fused") -> dict[str, Any]:
    """The report of a preset's step on the schema of the packaged checkpoint: ``fused``, ``group``,
    the same for some of 16 robots, or ``eager``."""
    from wmrt.kernels.state_arguments import MOST_ROBOTS
    from wmrt.model import config
    from wmrt.model.checkpoint import load_checkpoint
    from wmrt.quant import get_recipe
    from wmrt.runtime.graph_lint import lint
    from wmrt.runtime.graph_subjects import EAGER_ALLOCATES, eager_subject, fused_subject

    like = load_checkpoint("highway")
    sizes, chosen = config.preset(preset), get_recipe(recipe)
    given = (like.schema, sizes, like.actions, chosen, batch)
    fused, of = step != "eager", MOST_ROBOTS if step == "group" else None
    report = lint(fused_subject(*given, of) if fused else lambda: eager_subject(*given))
    told = {"step": step, "preset": preset, "recipe": chosen.name, "batch": batch}
    known = {} if fused else {"known_to_allocate": EAGER_ALLOCATES}
    return {**told, **known, **report.to_json()}


def show(results: Mapping[str, Any]) -> None:
    """The verdict, faults other than allocations one by one, and what is launched most."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    said = console()
    allocations, others = _split(results["faults"])
    said.print(
        f"{results['step']} step of {results['preset']}, {results['recipe']}, batch "
        f"{results['batch']}: {results['launches']} launches or more, "
        f"{sum(f['count'] for f in allocations)} allocations of {results['allocated_bytes']:,} "
        f"bytes in all at {len(allocations)} places",
        markup=False,
        soft_wrap=True,
    )
    for fault in others:
        line = f"{fault['kind']}: {fault['operator']} {fault['detail']} ({fault['where']})"
        said.print(f"{line}, {fault['count']} times", markup=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("operator", "launches"):
        table.add_column(title, justify="left" if title == "operator" else "right")
    by_count = sorted(results["launches_by_operator"].items(), key=lambda item: -item[1])
    for name, count in by_count[:SHOWN]:
        table.add_row(name, str(count))
    rest = by_count[SHOWN:]
    if rest:
        table.add_row(f"{len(rest)} others", str(sum(count for _, count in rest)))
    said.print(table)


def _split(
    faults: Sequence[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    from wmrt.runtime.graph_faults import ALLOCATION

    allocations = [fault for fault in faults if fault["kind"] == ALLOCATION]
    return allocations, [fault for fault in faults if fault["kind"] != ALLOCATION]


@click.command(epilog="Example: python tools/graph_lint.py --preset 1.3b --recipe nvfp4")
@click.option("--preset", default="1.3b", show_default=True, help="Sizes of the network.")
@click.option("--recipe", default="nvfp4", show_default=True, help="Form of its weights.")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1, 16), help="Robots.")
@click.option(
    "--step",
    type=click.Choice(["fused", "group", "eager"]),
    default="fused",
    show_default=True,
    help="By fused operators, of all robots or of some of a group; or by torch's, the control arm.",
)
@json_option
def main(preset: str, recipe: str, batch: int, step: str, json_path: Path | None) -> None:
    """Look at a step for what keeps it from being captured as a CUDA Graph."""
    results = look(preset, recipe, batch, step)
    show(results)
    write_result(json_path, results, recipe=results["recipe"])
    if not results["capturable"]:
        falls_short("a capture of this step would fail, or repeat something wrong")


if __name__ == "__main__":
    try:
        main()
    except WmrtError as error:
        click.echo(f"graph_lint: error: {error}", err=True)
        sys.exit(2)
