from __future__ import annotations

import gc
import json
import random
import subprocess
import sys

import pytest

from wmrt.quant.resident import measure_resident
from wmrt.runtime.bench.flat import (
    LEAK,
    LIMIT,
    PARTS,
    READINGS,
    flatness,
    growth,
    uncertainty,
    verdict,
)


class Memory:
    """Counts what a step keeps; pages of ``grain`` bytes."""

    def __init__(self, leak: int, grain: int = 1, spare: int = 0) -> None:
        self.leak, self.grain, self.spare = leak, grain, spare
        self.used, self.steps, self.planted = 0, 0, 0

    def step(self) -> None:
        self.steps += 1
        self.used += self.leak

    def read(self) -> int:
        """The planted leak is in nobody's account here but in that of the second half."""
        used = self.used + max(self.steps - 2000, 0) * LEAK
        return -(-max(used - self.spare, 0) // self.grain) * self.grain


@pytest.mark.parametrize(("leak", "verdict"), [(0, "flat"), (1, "flat"), (2, "growing")])
def test_growth_per_step(leak: int, verdict: str) -> None:
    memory = Memory(leak)
    found = flatness(memory.step, memory.read, 2000)
    assert found["verdict"] == verdict and found["steps"] == 2000 and memory.steps == 4000
    assert found["bytes_per_1000_steps"] == pytest.approx(1000 * leak)
    assert found["planted_bytes_per_1000_steps"] == pytest.approx(1000 * (leak + LEAK))


def test_growth_at_the_start_is_no_growth() -> None:
    memory = Memory(0)
    memory.used = 10**9

    def step() -> None:
        memory.steps += 1
        memory.used += 500 if memory.steps <= 1000 else 0

    assert flatness(step, memory.read, 2000)["verdict"] == "flat"


def test_a_leak_that_fits_into_spare_memory_proves_nothing() -> None:
    memory = Memory(0, spare=10**6)
    assert flatness(memory.step, memory.read, 2000)["verdict"] == "not proven"


def test_nothing_read_is_missing() -> None:
    assert flatness(lambda: None, lambda: None, 2000)["verdict"] == "missing"
    assert gc.isenabled()


@pytest.mark.parametrize("slope", [0, 3])
def test_a_line_is_sure(slope: int) -> None:
    at = list(range(0, 24_000, 100))
    assert growth(at, [slope * x for x in at]) == pytest.approx(1000 * slope)
    assert uncertainty(at, [slope * x for x in at]) == pytest.approx(0, abs=1e-6)


def test_what_grows_in_stairs_is_told_with_its_uncertainty(seed: int) -> None:
    """The interval holds what the stairs come from about as often as it says."""
    draw, held, runs = random.Random(seed), 0, 400
    at = list(range(0, 240_000, 1000))
    for _ in range(runs):
        seen, pages = [], 0
        for _ in at:
            pages += draw.random() < 0.125 and draw.randrange(1, 3)
            seen.append(4000 * pages)
        half, mean = len(at) // 2, 1000 * 0.125 * 1.5 * 4
        grown = 1000 * (seen[-1] - seen[half]) / (at[-1] - at[half])
        held += abs(grown - mean) <= uncertainty(at, seen)
    assert 0.88 < held / runs < 0.995


def test_parts_take_readings() -> None:
    at = list(range(2 * PARTS))
    with pytest.raises(ValueError, match="20 readings; 10 parts of their half take 21"):
        uncertainty(at, at)
    assert uncertainty([*at, 2 * PARTS], [*at, 2 * PARTS]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("own", "planted", "said"),
    [
        ((0, 0), (10**5, 10**4), "flat"),
        ((LIMIT - 10, 9), (LIMIT + 10, 9), "flat"),
        ((LIMIT - 10, 10), (10**5, 0), "not proven"),
        ((LIMIT + 10, 11), (10**5, 0), "not proven"),
        ((LIMIT + 10, 10), (10**5, 0), "growing"),
        ((0, 0), (LIMIT + 10, 11), "not proven"),
        ((-(10**6), 10), (10**5, 0), "flat"),
    ],
)
def test_a_limit_within_an_interval_proves_nothing(
    own: tuple[float, float], planted: tuple[float, float], said: str
) -> None:
    assert verdict(own[0], planted[0], own[1], planted[1]) == said


_LEAKING = """
import json
from wmrt.quant.resident import measure_resident
from wmrt.runtime.bench.flat import flatness
read = lambda: measure_resident().resident.bytes
print(json.dumps(flatness(lambda: None, read, 50_000)))
"""


def test_a_leak_of_100_bytes_a_step_is_caught_in_a_real_process() -> None:
    if measure_resident().resident.bytes is None:
        pytest.skip("this system keeps no account of resident memory")
    # In a process of its own: one that has run other tests has room for it.
    run = subprocess.run(
        [sys.executable, "-c", _LEAKING], capture_output=True, text=True, check=True
    )
    found = json.loads(run.stdout)
    # Objects of 100 bytes take 112 in the allocator, and a pointer in the list that keeps them.
    assert found["planted_bytes_per_1000_steps"] > 50 * LIMIT
    assert found["planted_bytes_per_1000_steps"] < 200 * LIMIT
    assert found["verdict"] in ("flat", "growing")
    assert READINGS <= found["steps"]
