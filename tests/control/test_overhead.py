"""What the controller costs on top of a policy that does nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.control.support import FakePolicy, answer, simulated
from wmrt.model.schema import StateSchema, category, numeric

#: 20 fields, as a driving state has.
SCHEMA = StateSchema(
    {f"x{n}": numeric("m", -50.0, 50.0, required=n < 3) for n in range(19)}
    | {"lane": category(["left", "middle", "right"])},
    neutral=(0.0, 0.0),
)


@pytest.mark.parametrize("watchdog", [False, True], ids=["direct", "watchdog"])
def test_act(benchmark: Any, watchdog: bool) -> None:
    """Runs once, unless ``--benchmark-enable`` asks for the time. Target: p50 under 100 us."""
    action = np.float32([0.1, -0.1])
    predicted = {f"x{n}": 0.25 * n for n in range(19)} | {"lane": "left"}
    step = answer(action, chunk=np.tile(action, (8, 1)), predicted=predicted)
    policy = FakePolicy(lambda state, previous: step)
    policy.schema = SCHEMA
    controller = simulated(policy, watchdog=watchdog, deadline=60.0)
    state = {f"x{n}": 1.5 * n for n in range(19)} | {"lane": "left"}
    result = benchmark(controller.act, state)
    assert result.tolist() == pytest.approx(action.tolist())
