"""Drives for the quality gate: recorded ones to compare step by step, closed ones to compare
returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any

from wmrt.cli.driving.fleet import drive_in_processes
from wmrt.cli.driving.plan import Plan
from wmrt.core.errors import UsageError
from wmrt.core.seeds import HELD_OUT
from wmrt.core.workers import worker_pool
from wmrt.model.checkpoint import Checkpoint, check_schema
from wmrt.train.collect import make_env, run_episode
from wmrt.train.dataset import Episode, Meta, Recording, load_episodes
from wmrt.train.gates import paired

#: Drives that are made on the spot, and drives taken of a recording: about 100 and 500 windows.
MADE, TAKEN = 8, 40

#: Episodes done.
OnProgress = Callable[[float], object]


def environment(checkpoint: Checkpoint) -> str:
    """The environment a checkpoint was trained for; `UsageError` if it names none."""
    name = checkpoint.provenance.get("env")
    if not isinstance(name, str):
        raise UsageError("the checkpoint's provenance names no environment (env) to drive in")
    return name


def held_out(checkpoint: Checkpoint, jobs: int, on_progress: OnProgress) -> list[Episode]:
    """`MADE` drives of the noisy expert on held-out seeds, in the checkpoint's environment.

    Raises `WmrtError` when it cannot be had, `MissingExtraError` without the simulator.
    """
    name = environment(checkpoint)
    make_env(name).close()  # here first: what is missing is told before any process starts
    episodes = []
    with worker_pool(jobs) as pool:
        futures = [pool.submit(_drive, name, seed) for seed in HELD_OUT[:MADE]]
        for done, future in enumerate(as_completed(futures), 1):
            episodes.append(future.result())
            on_progress(done)
    return sorted(episodes, key=lambda episode: int(episode.seed))


def _drive(name: str, seed: int) -> Episode:
    env = make_env(name)
    try:
        return run_episode(env, seed, "noise")
    finally:
        env.close()


def recorded(checkpoint: Checkpoint, folder: Path) -> list[Episode]:
    """The last `TAKEN` episodes of a recording of the checkpoint's schema and actions."""
    meta = Meta.read(folder)
    check_schema(checkpoint.schema, meta.schema)
    if len(meta.actions) != len(checkpoint.actions):
        raise UsageError(
            f"{folder} records actions of {len(meta.actions)} dimensions, the model takes "
            f"{len(checkpoint.actions)}"
        )
    return load_episodes(folder)[-TAKEN:]


def as_recording(checkpoint: Checkpoint, episodes: Sequence[Episode]) -> Recording:
    return Recording.build(episodes, checkpoint.schema)


def closed_loop(
    packed: Checkpoint, bf16: Checkpoint, episodes: int, jobs: int, on_progress: OnProgress
) -> dict[str, Any]:
    """Both drive the same ``episodes`` held-out seeds, without breakers: nothing stands in for the
    model, so all of the difference is its own. `wmrt.train.gates.paired` with the returns."""
    name, seeds = environment(bf16), HELD_OUT[:episodes]
    returns, crashes = [], []
    for turn, checkpoint in enumerate((packed, bf16)):
        recipe = "bf16" if checkpoint.quantization is None else None
        plan = Plan(name, str(checkpoint.path), recipe, breakers=False, deadline=False, threads=1)

        def advance(done: float, turn: int = turn) -> None:
            on_progress(turn * episodes + done)

        rows = [e.row for e in drive_in_processes(plan, seeds, jobs, advance)]
        rows.sort(key=lambda row: int(row["seed"]))
        returns.append([float(row["return"]) for row in rows])
        crashes.append(sum(bool(row["crashed"]) for row in rows))
    found = paired(returns[0], returns[1])
    named = {"packed": returns[0], "bf16": returns[1]}
    counts = {"packed": crashes[0], "bf16": crashes[1]}
    return {**found, "first_seed": seeds[0], "returns": named, "crashes": counts}
