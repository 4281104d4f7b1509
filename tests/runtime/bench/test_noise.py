from __future__ import annotations

import pytest

from tests.runtime.bench.doubles import FakeStream, quiet_floor, recorded
from wmrt.core import machine
from wmrt.runtime.bench.floor import ASSUMED_CACHE, CACHES, Floor, buffer_bytes
from wmrt.runtime.bench.noise import judge


def floor_of(before: list[int], after: list[int]) -> Floor:
    """A floor whose readings take these nanoseconds; one more before each that does not count."""
    floor = Floor(FakeStream(1000, [5, *before, 5, *after]), (1,))
    floor.sample("before", len(before))
    floor.sample("after", len(after))
    return floor


def test_a_steady_floor_and_undisturbed_steps_are_quiet() -> None:
    verdict = judge(recorded([10] * 200), quiet_floor(), 1)
    assert verdict.quiet and verdict.calm == 1
    assert verdict.to_json() == {"stamp": "quiet", "calm": 1.0, "reasons": []}


# Of 8 samples the quartiles are the 2nd and the 6th: 1000/1000 and 1000/1029 are 2.9% apart,
# 1000/1000 and 1000/1033 are 3.2%.
@pytest.mark.parametrize(("slow", "quiet"), [(1029, True), (1033, False)])
@pytest.mark.parametrize("phase", ["before", "after"])
def test_the_floor_may_vary_by_three_percent(slow: int, quiet: bool, phase: str) -> None:
    varying, steady = [1000] * 5 + [slow] * 3, [1000] * 8
    floor = floor_of(*((varying, steady) if phase == "before" else (steady, varying)))
    verdict = judge(recorded([10] * 200), floor, 1)
    assert verdict.quiet is quiet
    if not quiet:
        (reason,) = verdict.reasons
        assert f"the floor {phase} the arms varies by 3.2%" in reason


@pytest.mark.parametrize(("switched", "quiet"), [(1, True), (2, False)])
def test_over_99_percent_of_steps_are_not_interrupted(switched: int, quiet: bool) -> None:
    switches = [3] * switched + [0] * (200 - switched)
    verdict = judge(recorded([10] * 200, switches=switches), quiet_floor(), 1)
    assert verdict.calm == 1 - switched / 200
    assert verdict.quiet is quiet


def test_without_a_floor_nothing_is_quiet() -> None:
    floor = Floor(None, (1, 2), "no library")
    floor.sample("before", 15)
    verdict = judge(recorded([10] * 200), floor, 2)
    assert verdict.reasons == (
        "the floor before the arms is missing",
        "the floor after the arms is missing",
    )
    assert floor.floor_ms(1000, 1) is None
    assert floor.to_json()["missing"] == "no library" and floor.to_json()["buffer_bytes"] is None


def test_the_floor_is_bytes_over_the_median_bandwidth() -> None:
    floor = floor_of([1000, 500, 1000, 1000], [2000, 1000, 1000, 1000])
    assert floor.bandwidth(1) == 1.0  # 1000 bytes in 1000 ns: 1 GB/s
    assert floor.floor_ms(3_000_000, 1) == 3.0
    found = floor.to_json()["threads"]
    assert isinstance(found, dict) and found["1"]["samples"] == {
        "before": 4,
        "between": 0,
        "after": 4,
    }


def test_the_buffer_is_ten_caches_or_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "last_level_cache_bytes", lambda: 32 * 2**20)
    assert buffer_bytes(1) == CACHES * 32 * 2**20
    assert buffer_bytes(738_000_001) == 352 * 2 * 2**20  # whole huge pages
    monkeypatch.setattr(machine, "last_level_cache_bytes", lambda: None)
    assert buffer_bytes(1) == CACHES * ASSUMED_CACHE
