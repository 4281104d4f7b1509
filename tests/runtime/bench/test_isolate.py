from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from wmrt.runtime.bench import isolate
from wmrt.runtime.bench.isolate import Measure, isolated, throttled

NAMES = ["affinity", "SCHED_FIFO", "mlockall"]


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

    monkeypatch.setattr(isolate.ctypes, "CDLL", lambda *a, **k: Library())
    return calls


def test_what_was_got_is_given_back(no_lock: list[str]) -> None:
    before = state()
    cpus = sorted(before[0])[:1]
    with isolated(cpus) as got:
        assert [one.name for one in got] == NAMES
        assert got[0].got and os.sched_getaffinity(0) == set(cpus)
        if got[1].got:
            assert os.sched_getscheduler(0) == os.SCHED_FIFO
        else:
            assert got[1].reason
        assert got[2].got and no_lock == ["lock"]
    assert state() == before and no_lock == ["lock", "unlock"]


def test_it_is_given_back_after_an_error_too() -> None:
    before = state()
    with pytest.raises(RuntimeError), isolated(sorted(before[0])[:1]):
        raise RuntimeError
    assert state() == before


def test_refusals_are_said_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def mlockall(self, flags: int) -> int:
            ctypes.set_errno(errno.ENOMEM)
            return -1

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(isolate.ctypes, "CDLL", lambda *a, **k: Refusing())
    monkeypatch.setattr(isolate.ctypes, "get_errno", lambda: errno.ENOMEM)
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    before = state()
    with isolated([2**15]) as got:
        said = [str(one) for one in got]
        assert not any(one.got for one in got)
    assert said[0].startswith("no affinity: Invalid argument; these processors")
    assert said[1].startswith("no SCHED_FIFO: Operation not permitted; needs CAP_SYS_NICE")
    assert said[2].startswith("no mlockall: Cannot allocate memory; needs CAP_IPC_LOCK")
    assert state() == before


def test_a_system_without_the_calls_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sched_getaffinity", "sched_getscheduler"):
        monkeypatch.delattr(os, name)
    with isolated([0]) as got:
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
