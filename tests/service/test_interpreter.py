"""What a process settles that serves robots and does nothing else: in one of its own."""

from __future__ import annotations

import subprocess
import sys

from wmrt.service.interpreter import SWITCH

_PROGRAM = """
import gc, sys, threading, time, weakref
from wmrt.service import interpreter

class Kept:
    pass

def tied():
    one = Kept()
    one.own = one
    return weakref.ref(one)

gc.disable()
old, alive = tied(), [Kept() for _ in range(1000)]
interpreter.settle()
new = tied()
print(old() is None, gc.get_freeze_count() > 1000, len(gc.get_objects()) < 1000)
gc.collect()
print(new() is None, sys.getswitchinterval())
"""


def test_what_is_there_is_frozen_and_what_comes_is_collected() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *said, interval = done.stdout.split()
    assert said == ["True"] * 4
    assert abs(float(interval) - SWITCH) < 1e-6


_WAITS = """
import gc
from wmrt.service import interpreter

alive = [[] for _ in range(300_000)]
interpreter.settle()
before = gc.get_stats()[2]["collections"]
new = []
for number in range(2 * 11 * 11 * 700):  # twice what makes a full one due
    cycle = [number]
    cycle.append(cycle)
    if number % 100 == 0:
        new.append(cycle)
print(gc.get_stats()[2]["collections"] - before)
"""


def test_garbage_does_not_wait_for_as_many_objects_as_are_frozen() -> None:
    done = subprocess.run([sys.executable, "-c", _WAITS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 1
