"""``wmrt drive``: drive a simulated car and show what it did and how fast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wmrt.cli.common import (
    SECOND_OPINION,
    SECONDS,
    console,
    json_option,
    out_option,
    plain,
    progress,
    write_result,
)
from wmrt.core import machine
from wmrt.core.errors import SafetyError, UsageError
from wmrt.core.seeds import HELD_OUT

if TYPE_CHECKING:
    from wmrt.cli.driving.plan import Plan
    from wmrt.cli.driving.stand import Stand
    from wmrt.cli.driving.summary import Tally
    from wmrt.control.planning import MPPI


@click.command(epilog="Example: wmrt drive --recipe nvfp4 --episodes 3 --out out/drive")
@click.option("--env", "env_name", default="wmrt/Highway-v0", show_default=True, metavar="ID")
@click.option(
    "--model",
    default="highway",
    show_default=True,
    metavar="NAME",
    help="A packaged checkpoint, a folder, a hub repository as owner/name, one of the control arms "
    "random, expert, rule, or a service that `wmrt serve` runs: ws://host:port, unix:/path, "
    "with its token in WMRT_TOKEN.",
)
@click.option(
    "--recipe",
    metavar="RECIPE",
    help="bf16, nvfp4, mxfp4, w4a8, ... Default: nvfp4, or what a packed checkpoint stores.",
)
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE")
@click.option(
    "--executor",
    type=click.Choice(["auto", "native", "triton", "eager"]),
    default="auto",
    show_default=True,
    help="What steps the model: native code, torch, or native code where it can be had.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="That step the model. Default: every processor but one, or 1 with several --jobs.",
)
@click.option("--episodes", type=click.IntRange(1), default=5, show_default=True)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=HELD_OUT.start,
    show_default=True,
    help="Seed of the first episode; the others follow it.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes, one thread each; more than one share the cores, so no deadline is enforced.",
)
@out_option(help="Write report.html and episode.gif there.")
@click.option(
    "--limits",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Limits of the breakers, as save_limits writes them; default the actuators' own.",
)
@click.option("--no-breakers", is_flag=True, help="Send the driver's actions as they are.")
@click.option(
    "--no-deadline",
    is_flag=True,
    help="Never discard a late action; for a machine that is busy with other work.",
)
@click.option(
    "--monitor",
    is_flag=True,
    help="Compare every observation with what the model expected of it; needs the model's "
    "monitor.json, see `wmrt calibrate`.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="PLACE",
    help="Record every decision for `wmrt replay`: a folder, or NAME.mcap for one episode.",
)
@click.option(
    "--planner",
    type=click.Choice(["mppi"]),
    help="Plan with the model's imagination around its own actions. Default: the model as it is.",
)
@click.option(
    "--planner-budget",
    type=click.IntRange(1),
    metavar="N",
    help="Imagined steps a control step may take; refused if they do not fit the deadline.",
)
@click.option(
    "--consensus",
    default="auto",
    show_default=True,
    metavar="SECOND",
    help=f"{SECOND_OPINION} and the environment's rule, 2 of 3: {SECONDS}; or off.",
)
@click.option(
    "--consensus-every",
    "every",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Vote every so many steps.",
)
@json_option
def command(
    env_name: str,
    model: str,
    recipe: str | None,
    device: str,
    executor: str,
    threads: int | None,
    episodes: int,
    seed: int,
    jobs: int,
    out: Path | None,
    limits: Path | None,
    no_breakers: bool,
    no_deadline: bool,
    record: Path | None,
    planner: str | None,
    planner_budget: int | None,
    consensus: str,
    every: int,
    monitor: bool,
    json_path: Path | None,
) -> None:
    """Drive a simulated car with a world model, all breakers on, and show what it did.

    Every episode has its own seed. The control arms drive the same seeds: expert and rule behind
    breakers at levels 0 to 2, random without.
    """
    from wmrt.cli.driving.plan import Plan
    from wmrt.cli.driving.records import check_place
    from wmrt.cli.driving.remote import require_one

    require_one(model, jobs, threads, no_deadline, every)
    deadline = jobs == 1 and not no_deadline
    threads = _threads(jobs) if threads is None else threads
    seeds = range(seed, seed + episodes)
    if record is not None:
        check_place(record, seeds)
    plan = Plan(
        env_name, model, recipe, device, not no_breakers, deadline, threads, executor,
        consensus, every, monitor, None if record is None else str(record),
        _planner(planner, planner_budget), limits,
    )  # fmt: skip
    _run(plan, seeds, jobs, out, json_path)


def _threads(jobs: int) -> int:
    # One core stays free for the rest of the loop: with every core, single calls stalled for 80 to
    # 190 ms whenever anything else ran.
    return max(1, machine.usable_cpus() - 1) if jobs == 1 else 1


def _planner(name: str | None, budget: int | None) -> MPPI | None:
    from wmrt.control.planning import MPPI

    if name is None:
        if budget is not None:
            raise UsageError(f"--planner-budget {budget}: there is no planner; add --planner mppi")
        return None
    try:
        return MPPI() if budget is None else MPPI(budget=budget)
    except SafetyError as error:
        raise UsageError(f"--planner-budget: {error}") from None


def _run(plan: Plan, seeds: range, jobs: int, out: Path | None, json_path: Path | None) -> None:
    from wmrt.cli.driving import picture, show
    from wmrt.cli.driving.environment import open_environment
    from wmrt.cli.driving.stand import set_up

    camera = None if out is None else open_environment(plan.env, film=True)
    stand = set_up(plan)  # here too with several processes: errors are told before any starts
    account = stand.account
    with contextlib.closing(stand):
        tally = _drive(plan, stand, seeds, jobs, film=None if camera is None else seeds[0])
    heading, remarks = show.title(plan, account), show.notes(plan, account, seeds, jobs)
    facts = show.facts(plan, account)
    results: dict[str, Any] = {
        "env": plan.env,
        "arm": plan.arm,
        "seeds": [seeds[0], seeds[-1]],
        "jobs": jobs,
        "notes": remarks,
        "run": asdict(account),
        "summary": tally.summary(jobs=jobs, resident_bytes=account.resident_bytes),
        "episodes": tally.rows(),
    }
    _tell_records(results["episodes"])
    if stand.planner is not None and jobs == 1:  # with several, theirs planned
        results["planner"] = stand.planner.stats()
    show.show(console(), heading, remarks, [*show.figures(results["summary"]), *facts])
    write_result(
        json_path,
        results,
        device=plan.device,
        model=plan.model,
        model_sha256=account.model_sha256,
        recipe=account.recipe,
        resolved=account.report["resolved"] if account.report else None,
    )
    if out is not None and tally.reel is not None:  # both or neither
        document = plain(picture.page(stand, tally, heading, remarks, facts, results), "report")
        _tell_pictures(picture.write_pictures(camera, out, document, tally.reel))


def _tell_pictures(paths: Iterable[Path]) -> None:
    for path in paths:
        console().print(f"wrote {path}", markup=False, soft_wrap=True)


def _tell_records(episodes: list[dict[str, Any]]) -> None:
    """A recording with something missing is no secret; the drive itself is what it is."""
    for record in [episode["record"] for episode in episodes if "record" in episode]:
        lost = record["dropped"] + record["lost"]
        if lost or record["stopped"]:
            why = record["stopped"] or "the disk was too slow"
            said = f"{record['file']}: {lost} steps or commands are missing: {why}"
            console(stderr=True).print(said, markup=False, soft_wrap=True)


def _drive(plan: Plan, stand: Stand, seeds: range, jobs: int, film: int | None) -> Tally:
    """All episodes, under a progress bar; seed ``film`` is filmed."""
    from wmrt.cli.driving.fleet import drive_here, drive_in_processes
    from wmrt.cli.driving.summary import Tally

    tally = Tally()
    with progress() as bar:
        task = bar.add_task(f"driving {plan.model}", total=len(seeds))

        def advance(done: float) -> None:
            bar.update(task, completed=done)

        if jobs == 1:
            episodes = drive_here(stand, seeds, advance, film)
        else:
            episodes = drive_in_processes(plan, seeds, jobs, advance, film)
        for episode in episodes:
            tally.add(episode)
    return tally
