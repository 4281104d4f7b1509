"""Launches of a step and what they cost beside reading the weights, per device; all estimated.

    python tools/launches.py --json benchmarks/launches.json
    python tools/launches.py --markdown

A step takes at least what reading its bytes takes. At each border between kernels it loses a launch
and the time until the next weights arrive; inside one kernel for the whole step a barrier over the
grid instead, behind which weights can be on their way already.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import console, json_option, write_result
from wmrt.core.errors import WmrtError

ROOT = Path(__file__).resolve().parents[1]
COSTS = ROOT / "kernels" / "tuned" / "launch_costs.json"
LIMITS = ROOT / "kernels" / "tuned" / "aot_limits.json"
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
#: Targets in milliseconds, or as a multiple of the floor.
TARGETS: Mapping[str, tuple[str, float]] = {"H200": ("ms", 0.40), "RTX 4090": ("floor", 1.25)}


@dataclass(frozen=True)
class Variant:
    """A way to queue a step.

    * ``launches``: nodes of the graph; ``barriers``: over the whole grid, inside kernels
    * ``fills``: borders at which the memory bus runs dry until the next weights arrive
    """

    name: str
    launches: int
    barriers: int
    fills: int


@dataclass(frozen=True)
class Cost:
    """Microseconds: of a launch, of a barrier, until weights arrive."""

    launch: float
    barrier: float
    fill: float


@dataclass(frozen=True)
class Device:
    """Bandwidth, and costs as they are taken, at their lowest and at their highest."""

    name: str
    gb_per_s: float
    cost: Cost
    low: Cost
    high: Cost


def lost_ms(variant: Variant, cost: Cost) -> float:
    """Milliseconds that a step takes beyond reading its bytes."""
    launches = variant.launches * cost.launch
    return (launches + variant.barriers * cost.barrier + variant.fills * cost.fill) / 1000


def floor_ms(read_bytes: int, gb_per_s: float) -> float:
    """Milliseconds of reading so many bytes."""
    return read_bytes / gb_per_s / 1e6


def even_launch_us(first: Variant, second: Variant, cost: Cost) -> float | None:
    """The cost of a launch at which both variants take the same time; None where it does not
    matter. Dearer launches favour the one with fewer of them."""
    fewer = first.launches - second.launches
    if fewer == 0:
        return None
    rest = (second.barriers - first.barriers) * cost.barrier
    return (rest + (second.fills - first.fills) * cost.fill) / fewer


def even(device: Device, first: Variant, second: Variant) -> dict[str, Any]:
    """`even_launch_us` beside the cost that is taken."""
    found, taken = even_launch_us(first, second, device.cost), device.cost.launch
    cost = {"launch_us": found, "launch_taken_us": taken}
    return {"device": device.name, **cost, "how": "estimated"}


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
    """Torch's operators, the fused ones, one kernel for each layer, and one for the whole step."""
    kernels, weights = fused_launches(layers, known)
    phases = sum(each * known.get(name, 1) for name, _, each, _ in FUSED)
    in_layers = layers * (phases - 1)
    of_layers = layers * sum(each * reads for _, _, each, reads in FUSED)
    return [
        Variant("torch operators", eager + COPIES, 0, weights),
        Variant("fused operators", kernels + COPIES, 0, weights),
        # Weights of the next phase are asked for before the barrier; at a launch they are not.
        Variant(
            "kernel a layer",
            kernels - in_layers + COPIES,
            in_layers,
            weights - of_layers + layers,
        ),
        Variant("kernel a step", 1 + COPIES, kernels - 1, 1),
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


def devices() -> list[Device]:
    """Every device that costs are known for, with its bandwidth."""
    costs = json.loads(COSTS.read_text("utf-8"))["devices"]
    known = json.loads(LIMITS.read_text("utf-8"))["budget"]["devices"]
    bandwidth = {device["name"]: float(device["gb_per_s"]) for device in known}
    return [Device(n, bandwidth[n], *(_cost(c, k) for k in _KINDS)) for n, c in costs.items()]


_KINDS = ("value", "low", "high")


def _cost(costs: Mapping[str, Mapping[str, float]], kind: str) -> Cost:
    return Cost(*(costs[name][kind] for name in ("launch_us", "barrier_us", "fill_us")))


def predict(read_bytes: int, device: Device, variant: Variant) -> dict[str, Any]:
    """One row: what a variant is estimated to take on a device."""
    floor = floor_ms(read_bytes, device.gb_per_s)
    low, taken, high = (floor + lost_ms(variant, c) for c in (device.low, device.cost, device.high))
    return {
        "device": device.name,
        "variant": variant.name,
        "launches": variant.launches,
        "barriers": variant.barriers,
        "fills": variant.fills,
        "floor_ms": floor,
        "estimated_ms": taken,
        "estimated_low_ms": low,
        "estimated_high_ms": high,
        "ratio_to_floor": taken / floor,
        "how": "estimated",
    }


def budget(read_bytes: int, device: Device, phases: int) -> dict[str, Any] | None:
    """Microseconds that a border of phases may cost if the device's target is to be met."""
    if device.name not in TARGETS:
        return None
    kind, value = TARGETS[device.name]
    floor = floor_ms(read_bytes, device.gb_per_s)
    target = value if kind == "ms" else value * floor
    return {
        "device": device.name,
        "target_ms": target,
        "per_phase_us": (target - floor) * 1000 / phases,
        "how": "estimated",
    }


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
    fused, whole = ways[1], ways[-1]
    return {
        "preset": preset,
        "recipe": chosen.name,
        "read_bytes": read,
        "kernels_of_operators": {name: known.get(name, 1) for name, *_ in FUSED},
        "rows": [predict(read, device, way) for device in places for way in ways],
        "even": [even(device, fused, whole) for device in places],
        "budgets": [b for d in places if (b := budget(read, d, fused.launches)) is not None],
        "sources": json.loads(COSTS.read_text("utf-8"))["sources"],
    }


TITLES = ("device", "variant", "launch", "barrier", "floor", "estimated ms", "x floor")


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
            f"{row['ratio_to_floor']:.2f}",
        )


def markdown(results: Mapping[str, Any]) -> str:
    lines = [f"| {' | '.join(TITLES)} |", "|" + "---|" * len(TITLES)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in cells(results["rows"]))])


def show(results: Mapping[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    floor = TITLES.index("floor")  # of which the last column speaks; 80 characters hold no more
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
