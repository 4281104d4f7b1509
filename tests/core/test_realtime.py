from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from wmrt.core import frozen_garbage
from wmrt.core import realtime as module
from wmrt.core.realtime import Measure, leave, realtime, step_back, throttled

NAMES = ["affinity", "SCHED_FIFO", "mlockall", "gc.freeze"]


def state() -> tuple[Any, ...]:
    return os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0).sched_priority


@pytest.fixture(autouse=True)
def no_lock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of the C library, in place of locking the memory of the tests."""
    calls: list[str] = []

    class Library:
        def mlockall(self, flags: int) -> int:
            assert flags == 3  # what is there and what comes
            calls.append("lock")
            return 0

        def munlockall(self) -> int:
            calls.append("unlock")
            return 0

    monkeypatch.setattr(module.ctypes, "CDLL", lambda *a, **k: Library())
    return calls


def test_what_was_got_is_given_back(no_lock: list[str]) -> None:
    before, holders = state(), frozen_garbage._holders
    cpus = sorted(before[0])[:1]
    with realtime(cpus) as got:
        assert [one.name for one in got] == NAMES
        assert got[0].got and os.sched_getaffinity(0) == set(cpus)
        if got[1].got:
            assert os.sched_getscheduler(0) == os.SCHED_FIFO
        else:
            assert got[1].reason
        assert got[2].got and no_lock == ["lock"]
        assert got[3].got and frozen_garbage._holders == holders + 1
    assert state() == before and no_lock == ["lock", "unlock"]
    assert frozen_garbage._holders == holders


def test_it_is_given_back_after_an_error_too() -> None:
    before = state()
    with pytest.raises(RuntimeError), realtime(sorted(before[0])[:1]):
        raise RuntimeError
    assert state() == before


def test_refusals_are_said_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def mlockall(self, flags: int) -> int:
            ctypes.set_errno(errno.ENOMEM)
            return -1

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(module.ctypes, "CDLL", lambda *a, **k: Refusing())
    monkeypatch.setattr(module.ctypes, "get_errno", lambda: errno.ENOMEM)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    before = state()
    with realtime([2**15], freeze=False) as got:
        said = [str(one) for one in got]
        assert not any(one.got for one in got)
    assert said[0].startswith("no affinity: Invalid argument; these processors")
    assert said[1].startswith("no SCHED_FIFO: Operation not permitted; needs CAP_SYS_NICE")
    assert said[2].startswith("no mlockall: Cannot allocate memory; needs CAP_IPC_LOCK")
    assert state() == before


def test_a_system_without_the_calls_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sched_getaffinity", "sched_getscheduler"):
        monkeypatch.delattr(os, name)
    with realtime([0], freeze=False) as got:
        reasons = [one.reason for one in got if not one.got]
    assert reasons == ["this system has no such call"] * 2


def test_what_was_got_as_words_and_as_json() -> None:
    one = Measure("affinity", "to 0, 1", True)
    assert str(one) == "affinity to 0, 1"
    assert one.to_json() == {"name": "affinity", "asked": "to 0, 1", "got": True, "reason": None}


@pytest.mark.parametrize(
    ("runtime", "says"),
    [
        ("950000", ", of which the kernel takes 50 ms every 1000 ms (sysctl kernel.sched_rt_"),
        ("-1", ""),
        ("1000000", ""),
        ("what", ""),
        (None, ""),
    ],
)
def test_throttling_is_told(runtime: str | None, says: str, tmp_path: Path) -> None:
    (tmp_path / "sched_rt_period_us").write_text("1000000\n")
    if runtime is not None:
        (tmp_path / "sched_rt_runtime_us").write_text(f"{runtime}\n")
    told = throttled(tmp_path)
    assert told.startswith(says) and bool(told) == bool(says)


def test_only_what_is_asked_for(no_lock: list[str]) -> None:
    before = state()
    with realtime(priority=None, lock=False, freeze=False) as got:
        assert got == [] and state() == before
    with realtime(priority=None, freeze=False) as got:
        assert [one.name for one in got] == ["mlockall"]


def in_a_thread(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a new thread, whose scheduling ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def scheduling() -> tuple[int, int]:
    return os.sched_getscheduler(0), os.sched_getparam(0).sched_priority


def test_a_thread_that_works_for_the_loop_is_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert step_back().got and scheduling() == (os.SCHED_OTHER, 0)  # nothing to give up
    asked: list[Any] = []
    monkeypatch.setattr(os, "sched_getscheduler", lambda pid: os.SCHED_RR)
    monkeypatch.setattr(os, "sched_getparam", lambda pid: os.sched_param(7))
    monkeypatch.setattr(os, "sched_setscheduler", lambda *given: asked.append(given))
    assert step_back().got and asked == [(0, os.SCHED_RR, os.sched_param(6))]


def test_threads_really_change(no_lock: list[str]) -> None:
    def steps() -> list[tuple[int, int]]:
        with realtime(priority=7, lock=False, freeze=False) as got:
            if not got[0].got:
                pytest.skip(f"{got[0]}")
            return [in_a_thread(lambda: (step_back(), scheduling())[1]),
                    in_a_thread(lambda: (leave(), scheduling())[1]),
                    scheduling()]  # fmt: skip

    assert in_a_thread(steps) == [(os.SCHED_FIFO, 6), (os.SCHED_OTHER, 0), (os.SCHED_FIFO, 7)]


def test_leaving_that_is_refused_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert str(leave()) == "no ordinary scheduling: Operation not permitted"
