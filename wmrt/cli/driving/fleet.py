"""Drives many episodes, in this process or in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context

from wmrt.cli.driving.episode import Episode, Outcome, drive_episode
from wmrt.cli.driving.stand import Plan, Stand, set_up
from wmrt.core.parent import exit_with_parent

#: (episodes done, as a fraction): for the progress bar.
OnProgress = Callable[[float], object]
_STEPS = 300  # of a full episode; only the progress bar relies on it

_stand: Stand | None = None  # of a worker process


def drive_here(stand: Stand, seeds: range, on_progress: OnProgress) -> Iterator[Episode]:
    """One after the other in this process, in the order of the seeds."""
    for done, seed in enumerate(seeds):

        def stepped(step: int, _: Outcome, done: int = done) -> None:
            on_progress(done + step / _STEPS)

        yield drive_episode(stand.env, stand.arm, seed, stepped)
        on_progress(done + 1)


def drive_in_processes(
    plan: Plan, seeds: range, jobs: int, on_progress: OnProgress
) -> Iterator[Episode]:
    """In ``jobs`` processes that each set up ``plan``, in the order in which episodes end."""
    # Spawned, not forked: a forked child inherits torch's thread pools in an unusable state.
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_start, initargs=(plan,)) as pool:
        waiting = {pool.submit(_drive, seed) for seed in seeds}
        done = 0
        try:
            while waiting:
                ended: set[Future[Episode]]
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield future.result()
                    done += 1
                    on_progress(done)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _start(plan: Plan) -> None:
    global _stand
    exit_with_parent()
    _stand = set_up(plan)


def _drive(seed: int) -> Episode:
    if _stand is None:
        raise RuntimeError("a worker process drives before it is set up")
    return drive_episode(_stand.env, _stand.arm, seed)
