"""Pinning the native executor's threads to processors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.models import tiny
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.runtime import WorldModel

USABLE = sorted(os.sched_getaffinity(0))


def affinities() -> dict[int, set[int]]:
    """Processors that each thread of this process may run on."""
    return {
        int(t.name): os.sched_getaffinity(int(t.name)) for t in Path("/proc/self/task").iterdir()
    }


def test_each_thread_but_the_callers_is_pinned_to_its_own(seed: int) -> None:
    if len(USABLE) < 2:
        pytest.skip("one processor: no second thread to pin")
    before = affinities()
    cpus = USABLE[1], USABLE[0]
    model = WorldModel.from_checkpoint(tiny(seed), executor="native", cpus=cpus)
    started = [cpu for thread, cpu in affinities().items() if thread not in before]
    assert started == [{USABLE[0]}]
    assert os.sched_getaffinity(0) == set(USABLE)
    report = model.report()
    assert report.requested["cpus"] == list(cpus)
    assert report.resolved["cpus"] == cpus and report.resolved["threads"] == 2


def test_none_is_pinned_unless_asked_for(seed: int) -> None:
    report = WorldModel.from_checkpoint(tiny(seed), executor="native").report()
    assert report.requested["cpus"] is None and report.resolved["cpus"] is None


def test_processors_that_are_none(seed: int) -> None:
    nonsense: tuple[Any, ...] = (
        [],
        [-1],
        [USABLE[-1] + 1],
        [USABLE[0]] * 2,
        "01",
        0,
        [0.0],
        [True],
    )
    for cpus in nonsense:
        for executor in ("auto", "native"):
            with pytest.raises(UsageError, match=r"cpus=|threads="):
                WorldModel.from_checkpoint(tiny(seed), executor=executor, cpus=cpus)
    with pytest.raises(UsageError, match="one for each thread"):
        WorldModel.from_checkpoint(tiny(seed), executor="native", threads=1, cpus=[*USABLE, 99])


def test_what_has_no_threads_to_pin_refuses(seed: int) -> None:
    with pytest.raises(UsageError, match="executor=eager has none"):
        WorldModel.from_checkpoint(tiny(seed), executor="eager", cpus=USABLE[:1])
    with pytest.raises(UnsupportedError, match=r"with cpus=.* cannot be had: .*fp8"):
        WorldModel.from_checkpoint(tiny(seed), recipe="fp8", cpus=USABLE[:1])
