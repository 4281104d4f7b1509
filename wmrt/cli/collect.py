"""``wmrt collect``: record labelled episodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from wmrt.cli.common import console, json_option, out_option, progress, write_result
from wmrt.core.errors import UsageError

if TYPE_CHECKING:
    from wmrt.train.drivers import ModelDriver


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
@click.option(
    "--model",
    default=None,
    type=click.Path(path_type=Path),
    metavar="MODEL",
    help="Let this checkpoint drive and the expert label, instead of the drivers below.",
)
@click.option(
    "--occlusion",
    default=0.0,
    type=click.FloatRange(0),
    help="With --model: it sees its sensor groups off half the time, with this mean dwell in "
    "seconds. What is recorded stays complete.",
)
@click.option("--jobs", default=2, type=click.IntRange(1), show_default=True, help="Processes.")
@json_option
def command(
    env_id: str,
    out: Path,
    episodes: int | None,
    first_seed: int,
    model: Path | None,
    occlusion: float,
    jobs: int,
    json_path: Path | None,
) -> None:
    """Record driving episodes to learn from; finished parts are kept, a second run continues.

    Drivers: the expert, the expert with noise, with bursts of random actions, and random ones;
    every state is labelled by the expert. Seeds held out for evaluation are refused.
    """
    from wmrt.train.collect import collect
    from wmrt.train.pipeline import SHIPPED

    driver = _driver(env_id, model, occlusion)
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
                driver,
            )
        )
    console().print(f"{out}: {count} episodes from seed {first_seed}, {steps} new steps")
    write_result(
        json_path, {"episodes": count, "first_seed": first_seed, "new_steps": steps, "out": out}
    )


def _driver(env_id: str, model: Path | None, occlusion: float) -> ModelDriver | None:
    from wmrt.train.collect import make_env, sensor_groups
    from wmrt.train.drivers import ModelDriver

    if model is None:
        if occlusion:
            raise UsageError("--occlusion hides sensors from a model that drives; give --model")
        return None
    env = make_env(env_id)
    period, groups = float(env.unwrapped.period), sensor_groups(env)
    env.close()
    if occlusion and (not groups or occlusion < period):
        raise UsageError(
            f"--occlusion {occlusion:g}: {env_id} has {len(groups)} sensor groups and steps of "
            f"{period:g} s; a group stays off for at least one step"
        )
    return ModelDriver(model, occlusion / period)
