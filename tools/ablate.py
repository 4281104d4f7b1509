"""What transition attention is worth where memory is needed: one model per selector, same
everything else.

    python tools/ablate.py --data data/highway --out runs/ablation

Trains five models of the `mini` preset on the same episodes with sensor dropout. In each round that
follows every one of them drives behind failing sensors itself and trains on with all its drives so
far, labelled by the expert; at the end it trains on for longer. Then each drives the same held-out
seeds of wmrt/HighwayOccluded-v0. Finished parts are kept; a second run continues.

The rounds matter (Ross, Gordon and Bagnell, 2011): by cloning alone the arms with a past had the
lower loss (1.28 against 1.34) and drove no better than the one without (16.5 ±2.2 against 18.3
±1.9, 60 seeds), for their own past is none that they were trained on. After two rounds the learned
selector drove 21.2 ±0.9, no past 20.1 ±1.0 (200 seeds). What was left is length: looking back is
learned late. 3000 more iterations took the learned selector to 22.6 ±0.9 and left no past at 20.1
±1.1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

from wmrt.cli.common import console, json_option, track, write_result
from wmrt.core.errors import UsageError
from wmrt.core.measure import mean_ci95
from wmrt.core.seeds import HELD_OUT

ENV = "wmrt/HighwayOccluded-v0"
DWELL = "1.0"
OWN_SEED = 100_000
PART = 100  # seeds driven by one command
#: Arm to the options that make it; everything else is the same.
ARMS = {
    "learned": ["--selector", "learned", "--past", "8"],
    "no past": ["--selector", "recent", "--past", "0"],
    "random past": ["--selector", "random", "--past", "8"],
    "last 8": ["--selector", "recent", "--past", "8"],
    "full": ["--selector", "full", "--past", "8"],
}


def run(*arguments: str) -> None:
    """One `wmrt` command in a process of its own; its error is ours."""
    result = subprocess.run(
        [sys.executable, "-m", "wmrt", *arguments], capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise UsageError(f"wmrt {' '.join(arguments)}: {result.stderr.strip()[-400:]}")


def stage(arm: str, out: Path, number: int, kind: str = "") -> Path:
    """Folder of an arm's model after `number` rounds, or of the drives that made it."""
    return out / f"{arm.replace(' ', '_')}.{kind}{number}"


@dataclass(frozen=True)
class Effort:
    """Iterations of cloning (half as many after each round), rounds, drives of each round, and
    iterations at the end."""

    steps: int
    rounds: int
    own_episodes: int
    last_steps: int


def train_arm(arm: str, data: Path, out: Path, effort: Effort) -> Path:
    """Cloning, rounds of drives of its own and training on, and the rest; returns the model."""
    common = ("--batch", "32", "--occlusion", DWELL, "--threads", "1")
    if not stage(arm, out, 0).exists():
        run(
            "train", "--data", str(data), "--out", str(stage(arm, out, 0)), "--preset", "mini",
            "--steps", str(effort.steps), *common, *ARMS[arm],
        )  # fmt: skip
    recordings = ["--data", str(data)]
    for number in range(1, effort.rounds + 1):
        before, own = stage(arm, out, number - 1), stage(arm, out, number, "own")
        recordings += ["--data", str(own)]
        if stage(arm, out, number).exists():
            continue
        run(
            "collect", "--model", str(before), "--occlusion", DWELL, "--out", str(own),
            "--episodes", str(effort.own_episodes), "--jobs", "1",
            "--seed", str(OWN_SEED + (number - 1) * effort.own_episodes),
        )  # fmt: skip
        run(
            "train", *recordings, "--start", str(before), "--out", str(stage(arm, out, number)),
            "--steps", str(effort.steps // 2), "--lr", "8e-4", "--seed", str(number), *common,
        )  # fmt: skip
    before, model = stage(arm, out, effort.rounds), stage(arm, out, effort.rounds, "last")
    if not model.exists():
        run(
            "train", *recordings, "--start", str(before), "--out", str(model), "--lr", "1.2e-3",
            "--steps", str(effort.last_steps), "--seed", str(effort.rounds + 1), *common,
        )  # fmt: skip
    return model


def drive_arm(folder: Path, out: Path, episodes: int, jobs: int) -> dict[int, float]:
    """Return per held-out seed, driven in parts that are kept."""
    returns = {}
    for begin in range(0, episodes, PART):
        first, count = HELD_OUT.start + begin, min(PART, episodes - begin)
        result = out / f"{folder.name}-{first}-{count}.json"
        if not result.exists():
            run(
                "drive", "--env", ENV, "--model", str(folder), "--recipe", "bf16", "--no-breakers",
                "--episodes", str(count), "--seed", str(first), "--jobs", str(jobs),
                "--out", str(out / f"{folder.name}-drive"), "--json", str(result),
            )  # fmt: skip
        rows = json.loads(result.read_text())["results"]["episodes"]
        returns |= {row["seed"]: row["return"] for row in rows}
    return returns


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=Path("data/highway"))
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/ablation"))
@click.option("--steps", default=1200, show_default=True)
@click.option("--rounds", default=2, show_default=True)
@click.option("--own-episodes", default=120, show_default=True)
@click.option("--last-steps", default=3000, show_default=True)
@click.option("--episodes", default=200, show_default=True)
@click.option("--jobs", default=2, show_default=True)
@json_option
def main(
    data: Path,
    out: Path,
    episodes: int,
    jobs: int,
    json_path: Path | None,
    **effort: int,
) -> None:
    from rich.table import Table

    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        done = pool.map(lambda arm: train_arm(arm, data, out, Effort(**effort)), ARMS)
        models = dict(zip(ARMS, track(done, "training", total=len(ARMS)), strict=True))
    returns = {
        arm: drive_arm(folder, out, episodes, jobs)
        for arm, folder in track(models.items(), "driving", total=len(models))
    }
    table = Table("past states", "return", "minus learned, same seeds")
    rows = []
    for arm, scores in returns.items():
        mean, half = mean_ci95(list(scores.values()))
        gap, gap_half = mean_ci95([s - returns["learned"][seed] for seed, s in scores.items()])
        rows.append({"arm": arm, "return": mean, "ci95": half, "gap": gap, "gap_ci95": gap_half})
        table.add_row(arm, f"{mean:.2f} ±{half or 0:.2f}", f"{gap:+.2f} ±{gap_half or 0:.2f}")
    console().print(table, f"{ENV}, {episodes} held-out seeds, one training seed an arm")
    write_result(json_path, {"arms": rows, "env": ENV, "episodes": episodes, **effort})


if __name__ == "__main__":
    main()
