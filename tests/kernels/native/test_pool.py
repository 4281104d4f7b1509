"""Threads of the native library: they come, work, and go; misuse is told, not survived by luck."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.house.tree import ROOT
from tests.kernels.native.alone import ALONE
from wmrt.core import machine
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.native import library as native
from wmrt.kernels.native.library import Pool

USABLE = machine.usable_cpus()
PORTABLE = 0  # instruction set
DATA = np.ones(1 << 16, np.uint8)


def work(pool: Pool | None) -> int:
    """One call by all threads of the pool, in nanoseconds."""
    handle = None if pool is None else pool.handle
    took = native.library().wmrt_stream(PORTABLE, handle, DATA.ctypes.data, DATA.nbytes)
    return native.check(took, "stream")


def threads() -> set[str]:
    """By number: one of an earlier test may end meanwhile."""
    return {one.name for one in Path("/proc/self/task").iterdir()}


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_it_works_and_ends_its_threads() -> None:
    before = threads()
    with Pool(USABLE) as pool:
        own = threads() - before
        assert len(own) == USABLE - 1
        assert pool.threads == native.library().wmrt_pool_threads(pool) == USABLE
        assert work(pool) > 0
    assert not own & threads()


def test_no_pool_is_the_caller_alone() -> None:
    assert native.library().wmrt_pool_threads(None) == 1
    assert work(None) > 0


def test_200_pools_leave_nothing(seed: int) -> None:
    draw = random.Random(seed)
    before = threads()
    for turn in range(200):
        if turn == 20:
            pages = resident_pages()
        count = draw.randint(1, USABLE)
        cpus = draw.sample(sorted(os.sched_getaffinity(0)), count) if draw.random() < 0.5 else None
        with Pool(count, cpus, draw.choice([0, 1_000, 50_000])) as pool:
            for _ in range(draw.randrange(4)):
                work(pool)
    assert not threads() - before
    # A pool is 384 bytes and its threads' stacks are reused; 180 stacks of 8 MiB would touch at
    # least 2 pages each.
    assert resident_pages() - pages < 180


def test_threads_that_were_idle_long_enough_to_sleep_wake_up() -> None:
    with Pool(USABLE, spin_ns=0) as pool:
        for _ in range(20):
            time.sleep(0.001)
            assert work(pool) > 0


def test_callers_on_several_threads_take_turns() -> None:
    done: list[int] = []
    with Pool(USABLE) as pool:
        callers = [
            threading.Thread(target=lambda: done.extend(work(pool) for _ in range(20)))
            for _ in range(3)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert len(done) == 60


def test_a_closed_pool_is_told_and_closing_again_is_nothing() -> None:
    pool = Pool(1)
    pool.close()
    pool.close()
    with pytest.raises(UsageError, match="this Pool is closed; make a new one"):
        work(pool)
    with pytest.raises(ctypes.ArgumentError, match="UsageError: this Pool is closed"):
        native.library().wmrt_pool_threads(pool)


def test_a_forgotten_pool_is_closed() -> None:
    before = threads()
    pool = Pool(USABLE)
    own = threads() - before
    assert len(own) == USABLE - 1
    del pool
    gc.collect()
    assert not own & threads()


@pytest.mark.parametrize("count", [0, -1, USABLE + 1, 10_000])
def test_a_number_of_threads_that_cannot_be_is_told_with_what_can(count: int) -> None:
    with pytest.raises(UsageError, match=rf"threads={count}: 1 to {USABLE}, the processors"):
        Pool(count)


def test_processors_that_cannot_be_are_told() -> None:
    mine = sorted(os.sched_getaffinity(0))
    with pytest.raises(UsageError, match=r"cpus=\[\]: 1 different ones"):
        Pool(1, [])
    with pytest.raises(UsageError, match=rf"this process may use \[{mine[0]}.*\]"):
        Pool(1, [max(mine) + 1])
    if USABLE > 1:
        with pytest.raises(UsageError, match="2 different ones"):
            Pool(2, [mine[0], mine[0]])
    with pytest.raises(UsageError, match="spin_ns=-1"):
        Pool(1, spin_ns=-1)


def test_threads_run_where_they_were_told(seed: int) -> None:
    cpus = random.Random(seed).sample(sorted(os.sched_getaffinity(0)), USABLE)
    before = {path.name for path in Path("/proc/self/task").iterdir()}
    with Pool(USABLE, cpus) as pool:
        new = {path.name for path in Path("/proc/self/task").iterdir()} - before
        assert {next(iter(os.sched_getaffinity(int(name)))) for name in new} == set(cpus[1:])
        assert all(len(os.sched_getaffinity(int(name))) == 1 for name in new)
        assert pool.cpus == tuple(cpus)
    assert len(os.sched_getaffinity(0)) == USABLE


def test_threads_that_cannot_be_started_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        wmrt_pool_destroy = None

        def wmrt_pool_create(self, *_: object) -> None:
            return None

    monkeypatch.setattr(native, "library", Library)
    with pytest.raises(UnsupportedError, match=r"1 threads could not be started.*ulimit"):
        Pool(1)


AFTER_FORK = f"""
{ALONE}
import os
from wmrt.core.errors import UsageError
pool = library.Pool(len(os.sched_getaffinity(0)))
child = os.fork()
if child == 0:
    try:
        pool.handle
    except UsageError as error:
        said = f"belongs to process {{os.getppid()}}" in str(error)
    pool.close()
    with library.Pool(pool.threads) as own:
        os._exit(0 if said and own.handle else 1)
status = os.waitpid(child, 0)[1]
pool.close()
print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_is_told_and_makes_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", AFTER_FORK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_process_that_forgets_its_pool_ends() -> None:
    code = f"{ALONE}\nimport os; kept = library.Pool(len(os.sched_getaffinity(0)))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)
