"""Drives many episodes, in this process or in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

from wmrt.cli.driving.episode import Episode, Outcome, drive_episode
from wmrt.cli.driving.plan import Plan
from wmrt.cli.driving.reel import Reel
from wmrt.cli.driving.stand import Stand, set_up
from wmrt.core.workers import worker_pool

#: (episodes done, as a fraction): for the progress bar.
OnProgress = Callable[[float], object]
_STEPS = 300  # of a full episode; only the progress bar relies on it

_stand: Stand | None = None  # of a worker process


def drive_here(
    stand: Stand, seeds: range, on_progress: OnProgress, film: int | None = None
) -> Iterator[Episode]:
    """One after the other in this process, in the order of the seeds; seed ``film`` is filmed."""
    for done, seed in enumerate(seeds):

        def stepped(step: int, done: int = done) -> None:
            on_progress(done + step / _STEPS)

        yield _drive(stand, seed, film, stepped)
        on_progress(done + 1)


def drive_in_processes(
    plan: Plan, seeds: range, jobs: int, on_progress: OnProgress, film: int | None = None
) -> Iterator[Episode]:
    """In ``jobs`` processes that each set up ``plan``, in the order in which episodes end."""
    with worker_pool(jobs, _prepare, plan) as pool:
        waiting = {pool.submit(_drive_there, seed, film) for seed in seeds}
        done = 0
        while waiting:
            ended: set[Future[Episode]]
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                yield future.result()
                done += 1
                on_progress(done)


def _drive(stand: Stand, seed: int, film: int | None, stepped: Callable[[int], object]) -> Episode:
    reel = Reel(seed) if seed == film else None

    def on_step(step: int, outcome: Outcome) -> None:
        if reel is not None:
            reel.shoot(stand.env, step, outcome)
        stepped(step)

    try:
        episode = drive_episode(stand.env, stand.arm, seed, on_step)
    finally:
        record = None if stand.records is None else stand.records.close()
    episode.reel = reel
    if record is not None:
        episode.row["record"] = record
    return episode


def _prepare(plan: Plan) -> None:
    global _stand
    _stand = set_up(plan)


def _drive_there(seed: int, film: int | None) -> Episode:
    if _stand is None:
        raise RuntimeError("a worker process drives before it is set up")
    return _drive(_stand, seed, film, lambda step: None)
