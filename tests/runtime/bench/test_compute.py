"""The compute floor: what a linear's multiplications take out of a cache."""

import os

import pytest

from wmrt.core.errors import UsageError
from wmrt.quant import get_recipe
from wmrt.runtime.bench.compute import nanoseconds_per_weight


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "w4a8"])
def test_more_activations_take_longer(recipe: str) -> None:
    one, many = (nanoseconds_per_weight(get_recipe(recipe), batch) for batch in (1, 16))
    assert 0.001 < one < many < 100  # a nanosecond is about 3 cycles; portable C takes under 100


def test_all_threads_run_together() -> None:
    every = len(os.sched_getaffinity(0))
    assert nanoseconds_per_weight(get_recipe("nvfp4"), 4, every) > 0
    with pytest.raises(UsageError, match="threads"):
        nanoseconds_per_weight(get_recipe("nvfp4"), 4, every + 1)
