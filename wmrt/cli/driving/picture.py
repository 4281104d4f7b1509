"""Writes what people look at: ``report.html`` and ``episode.gif``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wmrt.cli.common import progress
from wmrt.cli.driving.environment import lanes
from wmrt.cli.driving.episode import Outcome, drive_episode
from wmrt.cli.driving.stand import Plan, Stand, set_up
from wmrt.cli.driving.summary import Tally
from wmrt.cli.report.film import Film
from wmrt.cli.report.page import write_report

REPORT, FILM = "report.html", "episode.gif"


def page(
    stand: Stand,
    tally: Tally,
    heading: str,
    remarks: Sequence[str],
    facts: Sequence[tuple[str, str]],
    results: Mapping[str, Any],
) -> dict[str, Any]:
    """The document that `wmrt.cli.report.page` renders."""
    first, last = results["seeds"]
    spec = stand.env.action_spec.dims
    return {
        "title": heading,
        "subtitle": f"{len(results['episodes'])} episodes, seeds {first} to {last}",
        "notes": list(remarks),
        "period": stand.env.period,
        "lanes": lanes(stand.env),
        "actions": [{"name": d.name, "unit": d.unit, "low": d.low, "high": d.high} for d in spec],
        "controlled": bool(stand.account.levels),
        "summary": results["summary"],
        "histogram": tally.histogram(),
        "episodes": results["episodes"],
        "traces": {str(e.row["seed"]): e.trace for e in tally.selection.episodes()},
        "facts": [list(fact) for fact in facts],
        "run": results["run"],
    }


def write_film(plan: Plan, row: Mapping[str, Any], path: Path) -> str | None:
    """Drive the seed of ``row`` once more with a camera; the measured drive had none.

    Returns:
        None, or in one sentence how this drive differs from the measured one.
    """
    stand = set_up(plan, film=True)
    film = Film(stand.env.period)
    with progress() as bar:
        task = bar.add_task(f"filming seed {row['seed']}", total=row["steps"])

        def shoot(step: int, outcome: Outcome) -> None:
            film.add(stand.env.render(), caption(stand.env, step, outcome))
            bar.update(task, completed=step)

        again = drive_episode(stand.env, stand.arm, row["seed"], shoot).row
    film.save(path)
    if all(again[key] == row[key] for key in ("return", "steps", "crashed")):
        return None
    return (
        f"{path.name} is a second drive of seed {row['seed']} that went another way: "
        f"return {again['return']:.2f} against {row['return']:.2f}"
    )


def caption(env: Any, step: int, outcome: Outcome) -> str:
    """Time, speed, actions in physical units, and what the breakers say."""
    words = [f"{step * env.period:4.1f} s", f"{env.telemetry()['speed'] * 3.6:3.0f} km/h"]
    for dim, value in zip(env.action_spec.dims, outcome.action, strict=True):
        digits = 3 if dim.high < 1 else 1
        words.append(f"{dim.name} {dim.to_physical(float(value)):+.{digits}f} {dim.unit}")
    if outcome.state is not None:
        words.append(f"breakers {outcome.state.replace('_', ' ')}")
    if outcome.source != "policy":
        words.append(f"action: {outcome.source}")
    words += [f"trip at level {level}" for level in outcome.tripped]
    return "   ".join(words)


def write_pictures(
    plan: Plan, out: Path, document: dict[str, Any], episodes: Sequence[Mapping[str, Any]]
) -> list[Path]:
    """Film the first episode and write the report; returns the files written."""
    difference = write_film(plan, episodes[0], out / FILM)
    if difference is not None:
        document = {**document, "notes": [*document["notes"], difference]}
    write_report(out / REPORT, document)
    return [out / REPORT, out / FILM]
