"""Two models in turns: each is timed as often, and the ratio is between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.runtime.models import states, tiny
from wmrt.runtime import Step, WorldModel
from wmrt.train.timing import side_by_side


class Timed:
    """Steps of a real model that say they took ``ms`` milliseconds."""

    def __init__(self, model: WorldModel, ms: float, log: list[float]) -> None:
        self._model, self._ms, self._log = model, ms, log

    def step(self, state: Any) -> Step:
        self._log.append(self._ms)
        timing = {"network": int(self._ms * 1e6)}
        return replace(self._model.step(state), timing_ns=timing)


def test_both_are_timed_alike(seed: int) -> None:
    model = WorldModel.from_checkpoint(tiny(seed))
    log: list[float] = []
    slow, fast = Timed(model, 3.0, log), Timed(model, 1.5, log)
    found = side_by_side(slow, fast, states(model.schema, 3, seed), rounds=4, steps=2)  # type: ignore[arg-type]
    assert [found[f"ratio_p{q}"] for q in (5, 50, 95)] == pytest.approx([2.0, 2.0, 2.0])
    assert found["bf16_ms"]["p50"] == pytest.approx(3.0) and found["packed_ms"]["n"] == 4
    first_of_turn = log[::4]
    assert len(log) == 2 * 2 * 5 and log.count(3.0) == log.count(1.5)
    assert set(first_of_turn) == {3.0, 1.5}  # who goes first changes
