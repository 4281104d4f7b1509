"""``wmrt replay``: make the decisions of a recorded drive again, and compare them bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wmrt.cli.common import console, falls_short, json_option, progress, write_result

if TYPE_CHECKING:
    from rich.progress import Progress

    from wmrt.control.planning import Planner
    from wmrt.control.recording.reader import Recording
    from wmrt.runtime import WorldModel


@click.command(epilog="Example: wmrt replay out/drive.mcap --threads 2 --json replay.json")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--model",
    metavar="NAME",
    help="Drive with this checkpoint instead, whatever its weights. Default: the one that drove.",
)
@click.option(
    "--recipe", metavar="RECIPE", help="Drive with another recipe. Default: the recorded one."
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="That step the model. Default: as many as recorded, or as there are here.",
)
@click.option(
    "--executor",
    type=click.Choice(["native", "triton", "eager"]),
    help="What steps the model. Default: what did. Another one may round otherwise.",
)
@click.option("--device", metavar="DEVICE", help="Default: the recorded one.")
@json_option
def command(
    path: Path,
    model: str | None,
    recipe: str | None,
    threads: int | None,
    executor: str | None,
    device: str | None,
    json_path: Path | None,
) -> None:
    """Replay FILE, a recording of `wmrt drive --record`, or every recording in a folder.

    Observations, clock readings, missed deadlines, which channels voted, and the fallback's answers
    are taken from the record; the model, the breakers and all else compute again. Actions, breaker
    states and events are compared bit for bit. Status 0: identical; 1: the first difference is
    named, or something is missing in the recording.
    """
    from wmrt.cli.replaying.models import Models, Wish
    from wmrt.control.recording.reader import Recording, recordings_in

    models = Models(Wish(model, recipe, executor, threads, device))
    paths = recordings_in(path) if path.is_dir() else [path]
    recordings = [Recording(each) for each in paths]
    built = [(each, models.driver(each), *models.channels(each)) for each in recordings]
    with progress() as bar:
        drives = [_replay(*each, bar) for each in built]
    identical = all(drive["identical"] for drive in drives)
    for drive in drives:
        _show(drive)
    first = drives[0]
    write_result(
        json_path,
        {"identical": identical, "drives": drives},
        device=first["ran"]["device"],
        model=model or first["model"],
        model_sha256=first["model_sha256"],
        recipe=first["recipe"],
        resolved=first["ran"],
    )
    if not identical:
        falls_short(next(drive["said"] for drive in drives if not drive["identical"]))


def _replay(
    recording: Recording,
    driver: WorldModel | Planner,
    channels: Mapping[str, WorldModel],
    remarks: list[str],
    bar: Progress,
) -> dict[str, Any]:
    """One recording; its line of ``results.drives``."""
    from wmrt.control.recording.replay import replay

    task = bar.add_task(f"replaying {recording.path.name}", total=None)
    report = replay(
        recording, driver, lambda done: bar.update(task, completed=done), channels=channels
    )
    bar.update(task, total=report.steps)
    recorded, resolved = recording.data("ran"), driver.report().resolved
    ran = {key: resolved.get(key) for key in recorded}
    if ran["isa"] != recorded["isa"]:
        remarks.append(f"recorded on {recorded['isa']}, replayed on {ran['isa']}")
    return {
        "file": recording.path,
        "parts": len(recording.parts),
        "model": recording.head.get("model_name"),
        "model_sha256": driver.weights_sha256,
        "recipe": driver.recipe.name,
        "recorded": recorded,
        "ran": ran,
        "identical": report.identical,
        "said": f"{recording.path}: {report.said()}",
        "notes": remarks,
        **asdict(report),
        "difference": None if report.difference is None else report.difference._asdict(),
    }


def _show(drive: dict[str, Any]) -> None:
    ran = drive["ran"]
    out = console()
    out.print(drive["said"], markup=False, soft_wrap=True)
    how = f"{ran['executor']}, {ran['threads']} threads (recorded: {drive['recorded']['threads']})"
    out.print(f"  {drive['model_sha256']:.16} under {drive['recipe']}, {how}", markup=False)
    for note in drive["notes"]:
        out.print(f"  {note}", markup=False, soft_wrap=True)
