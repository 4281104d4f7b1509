"""Next-state error of a checkpoint against persistence, on drives from held-out seeds.

    python tools/next_state.py --model highway --episodes 60

Drives are made on the spot by the noisy expert and never used for training.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import click

from wmrt.cli.common import console, falls_short, json_option, write_result
from wmrt.core.seeds import HELD_OUT
from wmrt.train.dataset import Episode, Recording


@click.command()
@click.option("--model", default="highway", show_default=True)
@click.option("--recipe", default=None, help="Default: as stored.")
@click.option("--episodes", default=60, type=click.IntRange(1), show_default=True)
@click.option("--jobs", default=2, type=click.IntRange(1), show_default=True)
@json_option
def main(model: str, recipe: str | None, episodes: int, jobs: int, json_path: Path | None) -> None:
    from rich.table import Table

    from wmrt.runtime import WorldModel
    from wmrt.train.evaluate import open_loop

    world = WorldModel.from_pretrained(model, recipe=recipe)
    env_id = world.provenance["env"]
    seeds = HELD_OUT[:episodes]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        drives = list(pool.map(_drive, [(env_id, seed) for seed in seeds], chunksize=4))
    rows = open_loop(world.network, Recording.build(drives, world.schema))
    table = Table("steps ahead", "model", "persistence", "category wrong", "persistence wrong")
    for row in rows:
        table.add_row(
            str(row.steps),
            f"{row.model:.3f}",
            f"{row.persistence:.3f}",
            f"{row.category_model:.4f}",
            f"{row.category_persistence:.4f}",
        )
    console().print(table, f"RMSE in standard deviations, {rows[0].windows} windows, {env_id}")
    write_result(
        json_path,
        {"horizons": [asdict(r) for r in rows], "seeds": [seeds[0], seeds[-1]]},
        model=model,
        recipe=world.recipe.name,
    )
    if any(row.model >= row.persistence for row in rows):
        falls_short("the model is no better than persistence at some horizon")


def _drive(task: tuple[str, int]) -> Episode:
    from wmrt.train.collect import make_env, run_episode

    env = make_env(task[0])
    try:
        return run_episode(env, task[1], "noise")
    finally:
        env.close()


if __name__ == "__main__":
    main()
