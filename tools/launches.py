"""Launches of a step and what they cost beside reading the weights, per device; all estimated.

    python tools/launches.py --json benchmarks/launches.json
    python tools/launches.py --markdown

A step takes at least what reading its bytes takes. At each border between kernels it loses a launch
and the time until the next weights arrive; inside one kernel for the whole step a barrier over the
grid instead, behind which weights can be on their way already. A launch that depends on the one
before waits less and has its weights on their way; weights asked ahead are read while nothing else
is. Beside borders there is what no reading hides: kernels without weights, and the sums and stores
behind the last weights of the others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tools.launch_costs import (
    COSTS,
    Variant,
    budget,
    devices,
    even,
    predict,
    there,
)
from wmrt.cli.common import console, json_option, write_result
from wmrt.core.errors import WmrtError

#: Modules whose LAUNCHES say how many kernels an operator is.
OPERATORS = ("ops_state", "ops_heads", "ops_fused", "ops_decode")
#: The fused step, operator by operator: times a step, times a layer, and whether it reads weights
#: that fill the memory bus.
FUSED: Sequence[tuple[str, int, int, bool]] = (
    ("state_fusion", 1, 0, True),
    ("transition_select", 1, 0, True),
    ("norm_qkv_rope_store", 0, 1, True),
    ("transition_attention_int8", 0, 1, False),
    ("gemv_residual", 0, 2, True),
    ("norm_gate_up", 0, 1, True),
    ("rms_norm_to", 1, 0, False),
    ("dense", 5, 0, True),
    ("action_decode", 1, 0, False),
    ("consequences", 1, 0, False),
    ("advance", 1, 0, False),
)
#: Copies of the inputs to the device and of the results back.
COPIES = 2
#: Launches that could still be merged: the step's count into `transition_select`, the last norm
#: into the first `dense`, the action into the layer behind it; and both copies, if kernels read and
#: wrote the host's memory.
MERGEABLE = 5


def fused_launches(layers: int, known: Mapping[str, int]) -> tuple[int, int]:
    """Kernels of the fused step, and how many of them read weights.

    Args:
        known: kernels of one call by operator; 1 of those that are not named.
    """
    kernels = weights = 0
    for name, once, each, reads in FUSED:
        calls = once + each * layers
        kernels += calls * known.get(name, 1)
        weights += calls * reads
    return kernels, weights


def variants(layers: int, eager: int, known: Mapping[str, int]) -> list[Variant]:
    """Torch's operators, the fused ones with what borders can be made to cost, one kernel for each
    layer, and one for the whole step."""
    kernels, weights = fused_launches(layers, known)
    phases = sum(each * known.get(name, 1) for name, _, each, _ in FUSED)
    in_layers = layers * (phases - 1)
    of_layers = layers * sum(each * reads for _, _, each, reads in FUSED)
    whole = kernels + COPIES
    work = {"alone": kernels - weights, "tails": weights}
    # The first matrix of the trunk is not asked for, and each `out` is while attention runs.
    ahead = {"ahead": of_layers - 1, "past_alone": layers}
    # All but the first kernel and the step's count, which is torch's; the heads and the state wait
    # before they ask for their weights.
    chained = {"dependents": kernels - 2, "fills": weights - of_layers}
    return [
        Variant("torch operators", eager + COPIES, 0, weights, **work),
        Variant("one by one", whole, 0, weights, **work, queued=True),
        Variant("fused operators", whole, 0, weights, **work),
        Variant("ahead", whole, 0, weights, **work, **ahead),
        Variant("ahead, fewer", whole - MERGEABLE, 0, weights, **work, **ahead),
        Variant("dependent", whole, **work, **chained),
        Variant("dependent, ahead", whole, **work, **chained, **ahead),
        # Weights of the next phase are asked for before the barrier; at a launch they are not.
        Variant(
            "kernel a layer",
            kernels - in_layers + COPIES,
            in_layers,
            weights - of_layers + layers,
            **work,
        ),
        Variant("kernel a step", 1 + COPIES, kernels - 1, 1, **work),
    ]


def known_launches() -> dict[str, int]:
    """Kernels of one call by operator, as the modules of operators tell them."""
    found: dict[str, int] = {}
    for name in OPERATORS:
        try:
            module = import_module(f"wmrt.kernels.triton.{name}")
        except ModuleNotFoundError:
            continue
        found |= module.LAUNCHES
    return found


def count(preset: str, recipe: str) -> dict[str, Any]:
    """Everything for one preset, estimated from configuration, ledger and the table of costs."""
    from wmrt.model import config
    from wmrt.model.checkpoint import load_checkpoint
    from wmrt.quant import get_recipe
    from wmrt.runtime.capacity import blueprint, ledger
    from wmrt.runtime.graph_lint import lint
    from wmrt.runtime.graph_subjects import eager_subject

    like, sizes, chosen = load_checkpoint("highway"), config.preset(preset), get_recipe(recipe)
    # bfloat16 where no recipe packs, which is what a step on a GPU reads as well.
    plan = blueprint(like.schema, sizes, like.actions, chosen, implementation="native")
    read = ledger(plan).step.bytes
    assert read is not None  # an estimate from the configuration alone is never missing
    looked = lint(lambda: eager_subject(like.schema, sizes, like.actions, chosen))
    known = known_launches()
    ways = variants(sizes.layers, sum(looked.launches.values()), known)
    places = devices()
    named = {way.name: way for way in ways}
    fused, whole = named["fused operators"], named["kernel a step"]
    return {
        "preset": preset,
        "recipe": chosen.name,
        "read_bytes": read,
        "kernels_of_operators": {name: known.get(name, 1) for name, *_ in FUSED},
        "rows": [
            predict(read, device, way) for device in places for way in ways if there(way, device)
        ],
        "even": [even(device, fused, whole) for device in places],
        "budgets": [b for d in places if (b := budget(read, d, fused.launches)) is not None],
        "sources": json.loads(COSTS.read_text("utf-8"))["sources"],
    }


TITLES = ("device", "variant", "launch", "barrier", "floor", "estimated ms", "target", "met")


#: Whether the target is met at every cost of the range, at the one taken, or at none.
MET = {
    ("yes", True): "yes",
    ("open", True): "likely",
    ("open", False): "unlikely",
    ("no", False): "no",
}


def cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        low, high = row["estimated_low_ms"], row["estimated_high_ms"]
        yield (
            row["device"],
            row["variant"],
            str(row["launches"]),
            str(row["barriers"]),
            f"{row['floor_ms']:.3f}",
            f"{row['estimated_ms']:.2f} ({low:.2f}-{high:.2f})",
            f"{row['target_ms']:.2f}",
            MET[row["reached"], row["likely"]],
        )


def markdown(results: Mapping[str, Any]) -> str:
    lines = [f"| {' | '.join(TITLES)} |", "|" + "---|" * len(TITLES)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells(results["rows"]))])


def show(results: Mapping[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    floor = TITLES.index("floor")  # 80 characters hold no more
    for title in (*TITLES[:floor], *TITLES[floor + 1 :]):
        table.add_column(title, no_wrap=True)
    for row in cells(results["rows"]):
        table.add_row(*row[:floor], *row[floor + 1 :])
    console().print(table)
    for row in results["even"]:
        said = f"fused operators equal a kernel a step at {row['launch_us']:.2f} us a launch"
        line = f"{row['device']}: {said}, taken for {row['launch_taken_us']:.2f}"
        console().print(line, soft_wrap=True)


@click.command(epilog="Example: python tools/launches.py --preset 1.3b --recipe nvfp4 --markdown")
@click.option("--preset", default="1.3b", show_default=True, help="Sizes of the network.")
@click.option("--recipe", default="nvfp4", show_default=True, help="Form of its weights.")
@click.option("--markdown", "as_markdown", is_flag=True, help="The table for a document.")
@json_option
def main(preset: str, recipe: str, as_markdown: bool, json_path: Path | None) -> None:
    """Count the launches of a step and estimate what they cost, per device."""
    results = count(preset, recipe)
    if as_markdown:
        click.echo(markdown(results))
    else:
        show(results)
    write_result(json_path, results, recipe=results["recipe"])


if __name__ == "__main__":
    try:
        main()
    except WmrtError as error:
        click.echo(f"launches: error: {error}", err=True)
        sys.exit(2)
