"""Waiting for a descriptor, asleep or not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from wmrt.kernels.native.library import library

SPINS = pytest.mark.parametrize("spin_ns", [0, 1_000_000, 30_000_000_000])


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe(), os.pipe()]
    yield made
    for pair in made:
        for file in pair:
            os.close(file)


@SPINS
def test_it_tells_which_can_be_read(pipes: list[tuple[int, int]], spin_ns: int) -> None:
    wait = library().wmrt_wait
    (first, to_first), (second, to_second) = pipes
    os.write(to_second, b"x")
    assert wait(first, second, spin_ns) == 2 == wait(-1, second, spin_ns)
    os.write(to_first, b"x")
    assert wait(first, second, spin_ns) == 3 and wait(first, -1, spin_ns) == 1
    assert wait(second, first, spin_ns) == 3
    os.read(second, 1)
    assert wait(first, second, spin_ns) == 1


@SPINS
def test_it_waits_until_something_comes(pipes: list[tuple[int, int]], spin_ns: int) -> None:
    (first, _), (second, to_second) = pipes
    found: list[int] = []
    waiting = threading.Thread(
        target=lambda: found.append(library().wmrt_wait(first, second, spin_ns))
    )
    waiting.start()
    time.sleep(0.05)
    assert waiting.is_alive() and not found  # and this thread runs on: the lock is let go of
    os.write(to_second, b"x")
    waiting.join(20.0)
    assert found == [2]


@SPINS
def test_an_end_can_be_read_too(pipes: list[tuple[int, int]], spin_ns: int) -> None:
    (first, _), (second, to_second) = pipes
    spare = os.dup(second)
    os.close(to_second)
    try:
        assert library().wmrt_wait(first, spare, spin_ns) == 2
    finally:
        os.close(spare)
        pipes[1] = (second, os.dup(second))
