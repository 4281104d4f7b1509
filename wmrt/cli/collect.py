"""``wmrt collect``: record labelled episodes."""

from __future__ import annotations

from pathlib import Path

import click

from wmrt.cli.common import console, json_option, out_option, progress, write_result


@click.command(
    epilog="Example: wmrt collect --out data/highway --episodes 1600 (about 25 minutes on 2 cores)"
)
@click.option("--env", "env_id", default="wmrt/Highway-v0", show_default=True, help="Gymnasium id.")
@out_option(default=Path("data/highway"), show_default=True, help="Folder of the recording.")
@click.option(
    "--episodes",
    default=None,
    type=click.IntRange(1),
    help="Default: as many as the shipped model saw.",
)
@click.option(
    "--seed",
    "first_seed",
    default=0,
    type=click.IntRange(0),
    show_default=True,
    help="First episode seed.",
)
@click.option("--jobs", default=2, type=click.IntRange(1), show_default=True, help="Processes.")
@json_option
def command(
    env_id: str, out: Path, episodes: int | None, first_seed: int, jobs: int, json_path: Path | None
) -> None:
    """Record driving episodes to learn from; finished parts are kept, a second run continues.

    Drivers: the expert, the expert with noise, with bursts of random actions, and random ones;
    every state is labelled by the expert. Seeds held out for evaluation are refused.
    """
    from wmrt.train.collect import collect
    from wmrt.train.pipeline import SHIPPED

    count = SHIPPED.episodes if episodes is None else episodes
    with progress() as bar:
        task = bar.add_task("shards", total=None)
        steps = sum(
            collect(
                env_id,
                out,
                count,
                first_seed,
                jobs,
                lambda n, total: bar.update(task, completed=n, total=total),
            )
        )
    console().print(f"{out}: {count} episodes from seed {first_seed}, {steps} new steps")
    write_result(
        json_path, {"episodes": count, "first_seed": first_seed, "new_steps": steps, "out": out}
    )
