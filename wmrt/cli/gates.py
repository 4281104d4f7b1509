"""``wmrt gates``: does a recipe run as said, drive as well, fit as counted, and step faster."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wmrt.cli.common import console, falls_short, json_option, progress, write_result
from wmrt.cli.text import finite
from wmrt.core import machine

if TYPE_CHECKING:
    from wmrt.cli.gating.subject import Subject
    from wmrt.train.gates import Gate
    from wmrt.train.quality import OpenLoop


@click.command(epilog="Example: wmrt gates highway --recipe nvfp4 --json gates.json")
@click.argument("model", metavar="MODEL")
@click.option(
    "--recipe",
    metavar="RECIPE",
    help="nvfp4, mxfp4, w4a8, ... Default: what a packed checkpoint stores.",
)
@click.option(
    "--against",
    metavar="MODEL",
    help="The bf16 checkpoint that a packed one was made of. Default: the one it names.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Recording to compare predictions on. Default: drives of held-out seeds, made for it.",
)
@click.option(
    "--episodes",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="Held-out seeds that both drive.",
)
@click.option(
    "--jobs", type=click.IntRange(1), help="Driving processes. Default: one per usable core."
)
@json_option
def command(
    model: str,
    recipe: str | None,
    against: str | None,
    data: Path | None,
    episodes: int,
    jobs: int | None,
    json_path: Path | None,
) -> None:
    """Judge MODEL (a packaged name, a folder, or owner/name) under a recipe by four gates.

    G1 execution: every linear ran the operator asked for. G2 quality: weights, layers, actions,
    predictions and driven return against bf16. G3 capacity: the ledger against file and memory.
    G4 speed: against bf16, side by side. A gate fails, passes, or says why it cannot be judged.
    """
    from wmrt.cli.gating.show import show
    from wmrt.cli.gating.subject import prepare

    with tempfile.TemporaryDirectory(prefix="wmrt-gates-") as folder:
        subject = prepare(model, recipe, against, Path(folder))
        gates = judge(subject, data, episodes, jobs or machine.usable_cpus())
    show(console(), f"{model} under {subject.recipe.name}", gates)
    write_result(
        json_path,
        {"gates": {name: finite(gate.to_json()) for name, gate in gates.items()}},
        model=model,
        model_sha256=subject.stored.weights_sha256,
        recipe=subject.recipe.name,
        resolved=subject.recipe.to_json(),
    )
    short = [f"{n} {g.verdict}" for n, g in gates.items() if g.verdict in ("fail", "unsupported")]
    if short:
        falls_short(", ".join(short))


def judge(subject: Subject, data: Path | None, episodes: int, jobs: int) -> dict[str, Gate]:
    """The four gates by name, in order."""
    from wmrt.core.errors import UnsupportedError
    from wmrt.runtime.probe import ProbeError, probe
    from wmrt.train import gates

    try:
        ran = probe(subject.folder)
    except UnsupportedError as error:
        rest = gates.missing(f"G1 unsupported: {error}")
        return {"G1": gates.Gate("unsupported", str(error)), "G2": rest, "G3": rest, "G4": rest}
    except ProbeError as error:
        rest = gates.missing("G1 failed: the model did not run")
        return {"G1": gates.Gate("fail", str(error)), "G2": rest, "G3": rest, "G4": rest}
    return {
        "G1": gates.execution(ran, subject.plan(), subject.left_out()),
        "G2": _quality(subject, data, episodes, jobs),
        "G3": _capacity(subject, ran),
        "G4": _speed(subject, ran),
    }


def _quality(subject: Subject, data: Path | None, episodes: int, jobs: int) -> Gate:
    from wmrt.cli.gating.drives import closed_loop
    from wmrt.core.errors import WmrtError
    from wmrt.train import gates

    if subject.random:
        return gates.Gate("not comparable", "random weights: what they do means nothing")
    if subject.bf16 is None:
        return gates.Gate("not comparable" if subject.other else "missing", subject.bf16_reason)
    closed: dict[str, Any]
    with progress() as bar:
        opened = _open_loop(subject, data, jobs, bar)
        task = bar.add_task("driving", total=2 * episodes)
        try:
            closed = closed_loop(
                subject.stored,
                subject.bf16,
                episodes,
                jobs,
                lambda done: bar.update(task, completed=done),
            )
        except WmrtError as error:
            closed = {"missing": str(error)}
    return gates.quality(opened, closed)


def _open_loop(subject: Subject, data: Path | None, jobs: int, bar: Any) -> OpenLoop | str:
    """Step-by-step errors on recorded drives, or why there are none."""
    import torch

    from wmrt.cli.gating.drives import MADE, as_recording, held_out, recorded
    from wmrt.core.errors import WmrtError
    from wmrt.runtime.build import build_network
    from wmrt.train.quality import compare

    assert subject.bf16 is not None  # asked only when there is one
    cpu = torch.device("cpu")
    bf16 = build_network(subject.bf16, "bf16", cpu).network
    packed = build_network(subject.stored, subject.recipe, cpu).network
    if data is not None:
        drives = recorded(subject.stored, data)
    else:
        task = bar.add_task("recording", total=MADE)
        try:
            drives = held_out(subject.stored, jobs, lambda done: bar.update(task, completed=done))
        except WmrtError as error:
            return str(error)
    return compare(bf16, packed, subject.recipe, as_recording(subject.stored, drives))


def _capacity(subject: Subject, ran: dict[str, Any]) -> Gate:
    from dataclasses import replace

    from wmrt.model.locate import WEIGHTS_FILE
    from wmrt.quant.ledger import Figure
    from wmrt.runtime.capacity import estimate, stored_layout
    from wmrt.train import gates

    resident = ran["resident"]
    stored = estimate(subject.stored, subject.recipe, stored_layout(subject.stored))
    ledger = replace(stored, workspace=Figure(**resident["workspace"]))
    size = (subject.folder / WEIGHTS_FILE).stat().st_size
    return gates.capacity(ledger, size, Figure(**resident["resident"]))


def _speed(subject: Subject, ran: dict[str, Any]) -> Gate:
    from wmrt.runtime import WorldModel
    from wmrt.runtime.probe import random_states
    from wmrt.train import gates
    from wmrt.train.timing import side_by_side

    only_reference = gates.speed(ran["report"]["kernels"])
    if only_reference is not None:
        return only_reference
    if subject.bf16 is None:
        return gates.missing(subject.bf16_reason)
    bf16, packed = (WorldModel.from_checkpoint(c) for c in (subject.bf16, subject.stored))
    return gates.speed_verdict(side_by_side(bf16, packed, random_states(packed.schema, 100)))
