"""Compare drives: returns, normalised scores and paired differences over the same seeds.

Reads result files of ``wmrt drive --json``. A score is ``(x - random) / (expert - random)``; its
interval, and the interval of a paired difference, is a percentile bootstrap over the seeds that all
of its drives share (10 000 resamples, fixed seed; Efron and Tibshirani, "An Introduction to the
Bootstrap", chapter 13).

Example: python tools/compare.py out/random.json out/expert.json out/rule.json out/nvfp4.json
    out/bf16.json --pair nvfp4:bf16 --json out/compare.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from wmrt import __version__
from wmrt.cli.common import console
from wmrt.core import measure
from wmrt.core.errors import UsageError, WmrtError

RESAMPLES, SEED, BATCH = 10_000, 20_260, 500
#: What a row has to reach: score of a model, and how much return a recipe may lose.
SCORE_FLOOR, LOSS_FLOOR = 0.90, -0.05
#: Fewer common seeds than this resolve no paired difference.
PAIR_SEEDS = 200
#: The expert is a yardstick only if it crashes this seldom at this share of the rule's speed.
EXPERT_CRASHES, EXPERT_SPEED = 0.10, 0.90

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Drive:
    """One result file: name, environment, and its rows by seed."""

    name: str
    env: str
    rows: Mapping[int, Mapping[str, Any]]

    def returns(self, seeds: Sequence[int]) -> Values:
        return np.array([self.rows[seed]["return"] for seed in seeds], np.float64)

    def mean(self, key: str) -> float:
        return measure.mean_ci95([float(row[key]) for row in self.rows.values()])[0]


def read_drive(argument: str) -> Drive:
    """``FILE`` or ``NAME=FILE``; without a name: the control arm, or the recipe that ran."""
    name, _, file = argument.rpartition("=")
    path = Path(file)
    try:
        document = json.loads(path.read_text("utf-8"))
        results = document["results"]
        rows = {int(row["seed"]): row for row in results["episodes"]}
        env, arm = results["env"], results["arm"]
        recipe = document["identity"]["recipe"]
        if not all({"return", "crashed", "mean_speed"} <= row.keys() for row in rows.values()):
            raise KeyError("return, crashed or mean_speed of an episode")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a result of wmrt drive: no {error}") from None
    if not rows:
        raise UsageError(f"{path}: holds no episode")
    return Drive(name or (recipe if arm == "model" else arm), env, rows)


def read_drives(arguments: Sequence[str]) -> dict[str, Drive]:
    """All files by name; refuses two of one name and drives of different environments."""
    drives: dict[str, Drive] = {}
    for argument in arguments:
        drive = read_drive(argument)
        if drive.name in drives:
            raise UsageError(f"two drives are named {drive.name!r}; give NAME=FILE")
        drives[drive.name] = drive
    if len({drive.env for drive in drives.values()}) > 1:
        raise UsageError(
            "different environments: " + ", ".join(f"{d.name} in {d.env}" for d in drives.values())
        )
    return drives


def common_seeds(*drives: Drive) -> list[int]:
    """Seeds that every drive has, ascending; `UsageError` if there is none."""
    seeds = sorted(set.intersection(*(set(drive.rows) for drive in drives)))
    if not seeds:
        raise UsageError(f"no common seed: {', '.join(drive.name for drive in drives)}")
    return seeds


def resampled_means(values: Values) -> Values:
    """Means float64[RESAMPLES, D] of bootstrap resamples of the rows of ``values`` [n, D]."""
    generator = np.random.Generator(np.random.PCG64(SEED))
    n = len(values)
    share = np.full(n, 1.0 / n)
    parts = [
        generator.multinomial(n, share, size=BATCH) @ values / n for _ in range(RESAMPLES // BATCH)
    ]
    return np.concatenate(parts)


def interval(statistics: Values) -> tuple[float, float] | None:
    """Central 95% of the resampled statistic; None if it is not finite everywhere."""
    if not np.isfinite(statistics).all():
        return None
    ordered = sorted(statistics.tolist())
    return measure.percentile(ordered, 2.5), measure.percentile(ordered, 97.5)


@dataclass(frozen=True)
class Score:
    """Normalised score of one drive. Interval and verdict are None where they cannot be had."""

    seeds: int
    value: float | None
    low: float | None
    high: float | None
    verdict: str


def score(drive: Drive, random: Drive, expert: Drive) -> Score:
    """``(drive - random) / (expert - random)`` over the common seeds."""
    seeds = common_seeds(drive, random, expert)
    values = np.stack([d.returns(seeds) for d in (drive, random, expert)], axis=1)
    x, base, top = values.mean(axis=0)
    if top <= base:
        return Score(len(seeds), None, None, None, "void: the expert is no better than random")
    means = resampled_means(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = interval((means[:, 0] - means[:, 1]) / (means[:, 2] - means[:, 1]))
    value = float((x - base) / (top - base))
    if bounds is None or len(seeds) < 2:
        return Score(len(seeds), value, None, None, "not resolved: too few seeds")
    return Score(
        len(seeds), value, *bounds, _verdict(bounds, SCORE_FLOOR, "at least 0.90", "below 0.90")
    )


@dataclass(frozen=True)
class Pair:
    """Difference ``drive - base`` per common seed, and relative to the base's mean return."""

    drive: str
    base: str
    seeds: int
    difference: float
    difference_low: float
    difference_high: float
    relative: float
    low: float | None
    high: float | None
    verdict: str


def pair(drive: Drive, base: Drive) -> Pair:
    """Paired difference of returns; the verdict is on the relative one."""
    seeds = common_seeds(drive, base)
    values = np.stack([drive.returns(seeds), base.returns(seeds)], axis=1)
    means = resampled_means(values)
    difference = interval(means[:, 0] - means[:, 1])
    assert difference is not None  # a difference of finite means
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = interval(means[:, 0] / means[:, 1] - 1.0)
    x, reference = values.mean(axis=0)
    low, high = bounds or (None, None)
    if bounds is None or len(seeds) < PAIR_SEEDS:
        verdict = f"not resolved: {len(seeds)} common seeds, {PAIR_SEEDS} needed"
    else:
        verdict = _verdict(bounds, LOSS_FLOOR, "no worse than -5%", "worse than -5%")
    relative = float(x / reference - 1.0)
    names = (drive.name, base.name, len(seeds))
    return Pair(*names, float(x - reference), *difference, relative, low, high, verdict)


def _verdict(bounds: tuple[float, float], floor: float, reached: str, missed: str) -> str:
    if bounds[0] >= floor:
        return reached
    return missed if bounds[1] < floor else "not resolved"


def expert_check(drives: Mapping[str, Drive]) -> str:
    """Whether the expert may be the yardstick: ``valid: ...``, ``void: ...``, ``missing: ...``."""
    if "expert" not in drives or "rule" not in drives:
        return "missing: needs the drives expert and rule"
    expert, rule = drives["expert"], drives["rule"]
    crashes, share = expert.mean("crashed"), expert.mean("mean_speed") / rule.mean("mean_speed")
    facts = f"crashes in {crashes:.1%} of episodes at {share:.1%} of the rule's mean speed"
    valid = crashes <= EXPERT_CRASHES and share >= EXPERT_SPEED
    return f"valid: it {facts}" if valid else f"void: the expert {facts}"


def compare(drives: Mapping[str, Drive], pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """All of it as plain data: ``arms``, ``pairs``, ``expert``."""
    scored = "random" in drives and "expert" in drives
    arms = []
    for drive in drives.values():
        returns = [float(row["return"]) for row in drive.rows.values()]
        mean, half = measure.mean_ci95(returns)
        arms.append(
            {
                "name": drive.name,
                "episodes": len(returns),
                "return_mean": mean,
                "return_ci95": half,
                "score": asdict(score(drive, drives["random"], drives["expert"]))
                if scored
                else None,
                "collision_rate": drive.mean("crashed"),
                "mean_speed": drive.mean("mean_speed"),
            }
        )
    for name in {name for names in pairs for name in names} - drives.keys():
        raise UsageError(f"--pair names {name!r}; there are {', '.join(drives)}")
    return {
        "env": next(iter(drives.values())).env,
        "expert": expert_check(drives),
        "arms": arms,
        "pairs": [asdict(pair(drives[a], drives[b])) for a, b in pairs],
    }


def show(results: Mapping[str, Any], console: Console) -> None:
    """The tables people read."""
    table = Table(title=f"{results['env']}, expert {results['expert']}", title_justify="left")
    for column in ("drive", "episodes", "return", "score [95%]", "collisions", "m/s", "score is"):
        table.add_column(column, justify="left" if column in ("drive", "score is") else "right")
    for arm in results["arms"]:
        found = arm["score"] or {"value": None, "low": None, "verdict": "missing: random or expert"}
        value = "" if found["value"] is None else f"{found['value']:.3f}"
        bounds = "" if found["low"] is None else f" [{found['low']:.3f}, {found['high']:.3f}]"
        half = "" if arm["return_ci95"] is None else f" ±{arm['return_ci95']:.2f}"
        cells = (
            arm["name"],
            str(arm["episodes"]),
            f"{arm['return_mean']:.2f}{half}",
            value + bounds,
        )
        rest = (f"{arm['collision_rate']:.1%}", f"{arm['mean_speed']:.1f}", found["verdict"])
        table.add_row(*(cell.replace("[", r"\[") for cell in (*cells, *rest)))
    console.print(table)
    for found in results["pairs"]:
        low, high = found["low"], found["high"]
        relative = "" if low is None else f", {found['relative']:+.1%} ({low:+.1%} to {high:+.1%})"
        absolute = f"({found['difference_low']:+.3f} to {found['difference_high']:+.3f})"
        names = f"{found['drive']} - {found['base']}, {found['seeds']} seeds"
        line = f"{names}: {found['difference']:+.3f} {absolute}{relative}: {found['verdict']}"
        console.print(line, markup=False, soft_wrap=True)


@click.command(epilog="Example: python tools/compare.py random.json expert.json nvfp4.json")
@click.argument("files", nargs=-1, required=True, metavar="[NAME=]FILE...")
@click.option("--pair", "pairs", multiple=True, metavar="A:B", help="Paired difference A - B.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def command(files: tuple[str, ...], pairs: tuple[str, ...], json_path: Path | None) -> None:
    """Compare result files of wmrt drive over the seeds they share."""
    chosen = []
    for text in pairs:
        first, colon, second = text.partition(":")
        if not (first and colon and second):
            raise UsageError(f"--pair {text!r}: give two drives as A:B")
        chosen.append((first, second))
    results = compare(read_drives(files), chosen)
    show(results, console())
    if json_path is not None:
        document = {"wmrt": __version__, "command": sys.argv, "results": results}
        json_path.parent.mkdir(parents=True, exist_ok=True)
        json_path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", "utf-8")


if __name__ == "__main__":
    try:
        command()
    except WmrtError as error:
        click.echo(f"compare: error: {error}", err=True)
        sys.exit(2)
