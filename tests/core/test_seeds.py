from __future__ import annotations

import pytest

from wmrt.core.errors import UsageError
from wmrt.core.seeds import HELD_OUT, require_training_seeds


def test_seeds_outside_the_range_pass() -> None:
    require_training_seeds([0, HELD_OUT.start - 1, HELD_OUT.stop])
    require_training_seeds([])


@pytest.mark.parametrize("seed", [HELD_OUT.start, HELD_OUT.stop - 1, 505_050])
def test_a_held_out_seed_is_refused_by_name(seed: int) -> None:
    with pytest.raises(UsageError, match=f"seed {seed} is held out"):
        require_training_seeds([0, seed])


def test_the_range_does_not_drift() -> None:
    # Published results rest on these seeds never having been trained on.
    assert range(500_000, 510_000) == HELD_OUT
