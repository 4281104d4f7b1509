"""What transition attention is worth where memory is needed: one model per selector, same
everything else.

    python tools/ablate.py --data data/highway --out runs/ablation

Trains five models of the `mini` preset on the same episodes with sensor dropout, lets each drive
behind failing sensors itself and trains on with those drives, labelled by the expert, then drives
each on the same held-out seeds of wmrt/HighwayOccluded-v0. Finished parts are kept; a second run
continues.

The second stage matters: cloning alone, the arms with a past had the lower loss (1.28 against 1.34)
and drove no better than the one without, for their own past is none that they were trained on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from wmrt.cli.common import console, json_option, track, write_result
from wmrt.core.errors import UsageError
from wmrt.core.measure import mean_ci95

ENV = "wmrt/HighwayOccluded-v0"
DWELL = "1.0"
OWN_SEED = 100_000
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


def train_arm(arm: str, data: Path, out: Path, steps: int, own_episodes: int) -> None:
    """Stage one, drives of its own, stage two."""
    folder = out / arm.replace(" ", "_")
    first, own = folder.with_name(f"{folder.name}.first"), folder.with_name(f"{folder.name}.own")
    common = ("--batch", "32", "--occlusion", DWELL, "--threads", "1")
    if folder.exists():
        return
    if not first.exists():
        run(
            "train", "--data", str(data), "--out", str(first), "--preset", "mini",
            "--steps", str(steps), *common, *ARMS[arm],
        )  # fmt: skip
    run(
        "collect", "--model", str(first), "--occlusion", DWELL, "--out", str(own),
        "--episodes", str(own_episodes), "--seed", str(OWN_SEED), "--jobs", "1",
    )  # fmt: skip
    run(
        "train", "--data", str(data), "--data", str(own), "--start", str(first),
        "--out", str(folder), "--steps", str(steps // 2), "--lr", "8e-4", "--seed", "1", *common,
    )  # fmt: skip


def drive_arm(arm: str, out: Path, episodes: int, jobs: int) -> dict[int, float]:
    """Return per seed."""
    folder = out / arm.replace(" ", "_")
    result = out / f"{folder.name}.json"
    if not result.exists():
        run(
            "drive", "--env", ENV, "--model", str(folder), "--recipe", "bf16", "--no-breakers",
            "--episodes", str(episodes), "--jobs", str(jobs),
            "--out", str(out / f"{folder.name}-drive"), "--json", str(result),
        )  # fmt: skip
    rows = json.loads(result.read_text())["results"]["episodes"]
    return {row["seed"]: row["return"] for row in rows}


@click.command()
@click.option("--data", type=click.Path(path_type=Path), default=Path("data/highway"))
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/ablation"))
@click.option("--steps", default=1200, show_default=True)
@click.option("--own-episodes", default=120, show_default=True)
@click.option("--episodes", default=100, show_default=True)
@click.option("--jobs", default=2, show_default=True)
@json_option
def main(
    data: Path,
    out: Path,
    steps: int,
    own_episodes: int,
    episodes: int,
    jobs: int,
    json_path: Path | None,
) -> None:
    from rich.table import Table

    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        done = pool.map(lambda arm: train_arm(arm, data, out, steps, own_episodes), ARMS)
        for _ in track(done, "training", total=len(ARMS)):
            pass
    returns = {arm: drive_arm(arm, out, episodes, jobs) for arm in track(list(ARMS), "driving")}
    table = Table("past states", "return", "minus learned, same seeds")
    rows = []
    for arm, scores in returns.items():
        mean, half = mean_ci95(list(scores.values()))
        gap, gap_half = mean_ci95([s - returns["learned"][seed] for seed, s in scores.items()])
        rows.append({"arm": arm, "return": mean, "ci95": half, "gap": gap, "gap_ci95": gap_half})
        table.add_row(arm, f"{mean:.2f} ±{half or 0:.2f}", f"{gap:+.2f} ±{gap_half or 0:.2f}")
    console().print(table, f"{ENV}, {episodes} held-out seeds, one training seed an arm")
    write_result(
        json_path,
        {
            "arms": rows,
            "env": ENV,
            "steps": steps,
            "own_episodes": own_episodes,
            "episodes": episodes,
        },
    )


if __name__ == "__main__":
    main()
