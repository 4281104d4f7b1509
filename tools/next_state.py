"""Next-state error of checkpoints against persistence, on drives from held-out seeds.

    python tools/next_state.py --model highway --episodes 60

Drives are made on the spot by the noisy expert and never used for training; several models are
measured on the same ones.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import console, falls_short, json_option, track, write_result
from wmrt.core.seeds import HELD_OUT
from wmrt.train.dataset import Episode, Recording
from wmrt.train.evaluate import open_loop


@click.command()
@click.option("--model", "models", default=("highway",), multiple=True, show_default=True)
@click.option("--recipe", default=None, help="Default: as stored.")
@click.option("--episodes", default=60, type=click.IntRange(1), show_default=True)
@click.option("--jobs", default=2, type=click.IntRange(1), show_default=True)
@json_option
def main(
    models: tuple[str, ...], recipe: str | None, episodes: int, jobs: int, json_path: Path | None
) -> None:
    from wmrt.runtime import WorldModel

    worlds = [
        WorldModel.from_pretrained(model, recipe=recipe, executor="eager") for model in models
    ]
    envs = sorted({str(world.provenance["env"]) for world in worlds})
    if len(envs) > 1:
        raise click.UsageError(f"models of different environments: {', '.join(envs)}")
    seeds = HELD_OUT[:episodes]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        drives = list(pool.map(_drive, [(envs[0], seed) for seed in seeds], chunksize=4))
    results: list[dict[str, Any]] = []
    for model, world in zip(models, track(worlds, "measuring"), strict=True):
        rows = open_loop(world.network, Recording.build(drives, world.schema))
        results.append({"model": model, "recipe": world.recipe.name, "horizons": rows})
    _show(results, envs[0])
    write_result(
        json_path,
        {"models": results, "seeds": [seeds[0], seeds[-1]]},
        model=", ".join(models),
        recipe=recipe,
    )
    if any(row.model >= row.persistence for result in results for row in result["horizons"]):
        falls_short("a model is no better than persistence at some horizon")


def _show(results: list[dict[str, Any]], env: str) -> None:
    from rich.table import Table

    table = Table(
        "model", "steps ahead", "error", "persistence", "category wrong", "by persistence"
    )
    for result in results:
        for row in result["horizons"]:
            table.add_row(
                f"{result['model']} {result['recipe']}",
                str(row.steps),
                f"{row.model:.3f}",
                f"{row.persistence:.3f}",
                f"{row.category_model:.4f}",
                f"{row.category_persistence:.4f}",
            )
    windows = results[0]["horizons"][0].windows
    console().print(table, f"RMSE in standard deviations, {windows} windows, {env}")


def _drive(task: tuple[str, int]) -> Episode:
    from wmrt.train.collect import make_env, run_episode

    env = make_env(task[0])
    try:
        return run_episode(env, task[1], "noise")
    finally:
        env.close()


if __name__ == "__main__":
    main()
