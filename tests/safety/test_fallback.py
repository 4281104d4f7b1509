"""The ramp to the fallback: finite, within the rates, without memory, and it keeps nothing."""

from __future__ import annotations

import gc
import math
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.safety.support import DRIVING, ODD, PERIOD, PERIOD_NS, Watch, limits, start_of
from wmrt.core.types import ActionSpec
from wmrt.safety import Breakers, Finding

BAD = [Finding("speed", "required")]
SPECS = pytest.mark.parametrize("spec", [DRIVING, ODD], ids=["driving", "odd"])
UNIT = st.floats(-1.0, 1.0)


@given(st.tuples(UNIT, UNIT, UNIT), st.tuples(UNIT, UNIT, UNIT), st.sampled_from([DRIVING, ODD]))
def test_it_ramps_to_where_it_wants_and_stays(
    start: tuple[float, ...], goal: tuple[float, ...], spec: ActionSpec
) -> None:
    start, goal = start[: len(spec)], goal[: len(spec)]
    breakers = Breakers(limits(spec))
    watch = Watch(spec, start_of(breakers.limits, start))
    breakers.reset(start)
    slowest = min(min(dim.max_delta(PERIOD)) for dim in spec.dims)
    for n in range(1, math.ceil(2.0 / slowest) + 2):
        before = list(watch.last)
        action = breakers.guard(n * PERIOD_NS, None, BAD, fallback=lambda: goal).action
        watch.see(n * PERIOD_NS, action)
        for was, value, wanted in zip(before, action, goal, strict=True):
            assert abs(value - wanted) <= abs(was - wanted), "it comes closer or stays"
            assert min(was, wanted) - 1e-7 <= value <= max(was, wanted) + 1e-7, "nor overshoots"
    assert action == pytest.approx(goal, abs=1e-6)


@SPECS
def test_it_has_no_memory(spec: ActionSpec, seed: int) -> None:
    """What a past was like makes no difference: only the last action and the time since do."""
    rng = random.Random(seed)
    for _ in range(30):
        start = tuple(rng.uniform(-1, 1) for _ in spec.dims)
        dt = rng.choice((0, PERIOD_NS // 3, PERIOD_NS, 9 * PERIOD_NS))
        seen = []
        for past in (0, 1, rng.randrange(2, 50)):
            breakers = Breakers(limits(spec))
            for n in range(past):
                breakers.guard(n * PERIOD_NS, None, BAD * rng.randrange(2))
            breakers.reset(start)
            breakers.guard(10**12, None, BAD, fallback=lambda at=start: at)
            seen.append(breakers.guard(10**12 + dt, None, BAD).action)
        assert len(set(seen)) == 1


def test_it_keeps_nothing() -> None:
    """Python makes a tuple for each answer; none of it is left when the next one is made."""
    breakers = Breakers(limits(), events=64)

    def steps(first: int, count: int) -> None:
        for n in range(first, first + count):
            breakers.guard(n * PERIOD_NS, None, BAD)

    steps(0, 500)  # the record is full from here on
    gc.collect()
    gc.disable()
    try:
        before = sys.getallocatedblocks()
        steps(500, 5_000)
        grown = sys.getallocatedblocks() - before
    finally:
        gc.enable()
    assert abs(grown) < 100, "blocks after 5000 steps, the collector off: there is no garbage"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_request_to_stop_the_process_passes(error: type[BaseException]) -> None:
    def fallback() -> tuple[float, ...]:
        raise error

    with pytest.raises(error):
        Breakers(limits()).guard(PERIOD_NS, None, BAD, fallback=fallback)
