"""How long a client waits before it tries again."""

from __future__ import annotations

import pytest

from wmrt.client import Backoff
from wmrt.core.errors import UsageError


def test_back_off_doubles_up_to_its_longest(seed: int) -> None:
    plain = Backoff(0.1, 0.5, jitter=0.0)
    assert [round(plain.wait(), 3) for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    plain.reset()
    assert plain.wait() == 0.1
    drawn = Backoff(0.1, 10.0, seed=seed)
    waits = [drawn.wait() for _ in range(5)]
    assert all(0.05 * 2**i <= wait <= 0.1 * 2**i for i, wait in enumerate(waits))
    for wrong in ((0.0, 1.0), (2.0, 1.0), (1.0, float("inf"))):
        with pytest.raises(UsageError, match="back-off"):
            Backoff(*wrong)
