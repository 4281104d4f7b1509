"""Writes what people look at: ``report.html`` and ``episode.gif``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wmrt.cli.common import track
from wmrt.cli.driving.environment import lanes
from wmrt.cli.driving.reel import Reel
from wmrt.cli.driving.stand import Stand
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


def write_film(camera: Any, reel: Reel, path: Path) -> None:
    """Render the moments of ``reel``; nothing is driven again.

    Args:
        camera: an environment like the one that was driven, opened with ``film``.
    """
    film = Film(camera.period)
    camera.reset(seed=reel.seed)
    moments = list(zip(reel.poses, reel.captions, strict=True))
    for poses, words in track(moments, f"filming seed {reel.seed}"):
        film.add(camera.frame(poses), words)
    film.save(path)


def write_pictures(camera: Any, out: Path, document: dict[str, Any], reel: Reel) -> list[Path]:
    """Write the report and the film; returns the files written."""
    out.mkdir(parents=True, exist_ok=True)
    write_report(out / REPORT, document)
    write_film(camera, reel, out / FILM)
    return [out / REPORT, out / FILM]
