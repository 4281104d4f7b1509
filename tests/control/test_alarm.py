"""The alarm: never early, never missed, and asleep when there is nothing to do."""

from __future__ import annotations

import random
import threading
import time
import weakref
from typing import Any

from tests.control.stalls import until
from wmrt.control.alarm import Alarm

SPAN = 20_000_000


def made(rung: list[tuple[Any, int]], span: float = SPAN, **options: Any) -> Alarm:
    timer = time.perf_counter_ns
    return Alarm(lambda what: rung.append((what, timer())), span, timer, **options)


def test_it_rings_once_and_not_before(seed: int) -> None:
    rung: list[tuple[Any, int]] = []
    alarm, draw = made(rung), random.Random(seed)
    for n in range(8):
        time.sleep(draw.choice([0.0, 0.01, 0.1]))  # also after it has gone to sleep for good
        at = time.perf_counter_ns() + SPAN
        alarm.arm(at, n)
        until(lambda: len(rung) == n + 1)  # noqa: B023
        assert rung[-1][0] == n and rung[-1][1] >= at
        assert alarm._armed is None
    alarm.stop()


def test_what_is_disarmed_or_armed_anew_does_not_ring() -> None:
    rung: list[tuple[Any, int]] = []
    alarm = made(rung)
    for n in range(200):
        alarm.arm(time.perf_counter_ns() + SPAN, n)
        if n % 3:
            alarm.disarm()
        time.sleep(0.0005)
    alarm.arm(time.perf_counter_ns() + SPAN, "last")
    until(lambda: rung and rung[-1][0] == "last")
    assert all(what == "last" or what % 3 == 0 for what, _ in rung)
    alarm.stop()


def test_it_is_not_woken_to_be_armed() -> None:
    alarm = made([], 50_000_000)
    looks: list[float] = []
    wait = alarm._wait
    alarm._wait = lambda seconds: (looks.append(seconds), wait(seconds))[1]  # type: ignore[method-assign]
    end = time.monotonic() + 0.5
    arms = 0
    while time.monotonic() < end:
        alarm.arm(time.perf_counter_ns() + 50_000_000, arms)
        alarm.disarm()
        arms += 1
        time.sleep(0.001)
    assert arms > 5 * len(looks) or arms < 100, (arms, looks)  # a busy machine arms less often
    until(lambda: looks[-1] > 1e6)  # nothing to do: until somebody wakes it
    alarm.stop()


def test_it_rings_now_when_told() -> None:
    rung: list[tuple[Any, int]] = []
    alarm = made(rung, 3600e9)
    alarm.ring()  # nothing is armed
    alarm.arm(time.perf_counter_ns() + 3600 * 10**9, "now")
    time.sleep(0.02)
    assert not rung
    alarm.ring()
    until(lambda: rung)
    alarm.stop()


def test_its_thread_starts_when_it_has_to_and_ends() -> None:
    began: list[str] = []
    alarm = made([], prepare=lambda: began.append(threading.current_thread().name))
    assert alarm._thread is None
    alarm.arm(time.perf_counter_ns() + SPAN, 0)
    until(lambda: began)
    assert began == ["wmrt-deadline"]
    thread = alarm._thread
    assert thread is not None and thread.daemon
    alarm.stop()
    thread.join(10.0)
    assert not thread.is_alive()


def test_it_holds_nothing_that_is_not_armed() -> None:
    class What:
        pass

    alarm = made([], 3600e9)
    what = What()
    ref = weakref.ref(what)
    alarm.arm(time.perf_counter_ns() + 3600 * 10**9, what)
    until(lambda: alarm._wakes_at > 0)  # it has seen it, and is about to wait for an hour
    alarm.disarm()
    del what
    until(lambda: ref() is None)
    alarm.stop()
