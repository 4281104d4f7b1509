"""A small environment and scripted drivers, with the shape that ``wmrt drive`` relies on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from wmrt.cli.driving.episode import Episode, Outcome
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.schema import StateSchema, numeric

ACTIONS = ActionSpec(
    (
        ActionDim("steering", "rad", -0.06, 0.06, 0.3, 0.3),
        ActionDim("acceleration", "m/s^2", -5.0, 5.0, 15.0, 30.0),
    )
)
SCHEMA = StateSchema({"speed": numeric("m/s", 0.0, 60.0)}, neutral=[0.0, 0.0])


class Straight:
    """Moves 2 m a step at a speed of 20 + step; ends after ``steps``, crashed if asked to."""

    state_schema, action_spec, period = SCHEMA, ACTIONS, 0.1

    def __init__(self, steps: int = 4, crash: bool = False, offroad: bool = False) -> None:
        self._steps, self._crash, self._offroad = steps, crash, offroad
        self.n = 0
        self.seeds: list[int] = []
        self.received: list[Any] = []

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        self.n = 0
        self.seeds.append(seed)
        return {}, self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.n += 1
        self.received.append(np.array(action))
        over = self.n == self._steps
        ended = over and (self._crash or self._offroad)
        return {}, 0.25 * self.n, ended, over and not ended, self._info()

    def state(self) -> dict[str, Any]:
        return {"speed": 20.0 + self.n}

    def telemetry(self) -> dict[str, Any]:
        others = [[2.0 * self.n + d, 4.0, 20.0, 0.0] for d in (-71.0, -69.0, 12.3, 129.0, 131.0)]
        return {
            "x": 2.0 * self.n,
            "y": 8.0,
            "speed": 20.0 + self.n,
            "heading": 0.01,
            "others": np.array(others),
        }

    def rule_action(self, state: Mapping[str, Any], previous: Any) -> Any:
        return np.array([0.0, 0.1], np.float32)

    def expert_label(self, horizon: int = 8) -> Any:
        chunks = np.zeros((2, horizon, 2), np.float32)
        chunks[1] = 0.05
        return SimpleNamespace(
            action=chunks[1, 0], chunks=chunks, weights=np.array([0.2, 0.8], np.float32)
        )

    def _info(self) -> dict[str, Any]:
        over = self.n == self._steps
        return {
            "state": self.state(),
            "crashed": over and self._crash,
            "offroad": over and self._offroad,
        }


class Scripted:
    """Answers with the outcomes it is given, in order."""

    def __init__(
        self,
        outcomes: Sequence[Outcome],
        controlled: bool = True,
        told: Mapping[str, Any] | None = None,
    ) -> None:
        self.controlled = controlled
        self._told = dict(told or {})
        self._outcomes = list(outcomes)
        self.seeds: list[int] = []

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)

    def act(self, state: Mapping[str, Any]) -> Outcome:
        return self._outcomes.pop(0)

    def told(self) -> dict[str, Any]:
        return self._told


def channel(votes: int, p50: float | None, **changes: Any) -> dict[str, Any]:
    """What `Controller.stats` tells of a consensus channel."""
    spent = {"n": votes, "p50": p50, "p90": p50, "p99": p50, "p999": None, "max": p50}
    told = {"every": 1, "votes": votes, "failures": 0, "late": 0, "ms": spent}
    idle = {**dict.fromkeys(spent), "n": 0}
    return {**told, "observe_ms": idle, "resident_bytes": None, **changes}


def outcome(ms: float | None = 1.0, **changes: Any) -> Outcome:
    step_ns = None if ms is None else round(ms * 1e6)
    options = {"state": "closed", "late": False, **changes}
    return Outcome(np.array([0.5, -0.5], np.float32), step_ns, 2_000_000, **options)


def episode(seed: int, returned: float, **row: Any) -> Episode:
    """An episode of which only the row matters."""
    defaults: dict[str, Any] = {
        "seed": seed,
        "return": returned,
        "steps": 10,
        "crashed": False,
        "offroad": False,
        "mean_speed": 25.0,
        "distance_m": 100.0,
        "trips": {"0": 0, "1": 1, "2": 2, "3": 3},
        "deadline_misses": 1,
        "fallback_steps": 2,
        "degraded_steps": 3,
        "openings": 1,
        "channels": {},
        "monitor": None,
        "step_ms": {"p50": 1.0, "p99": 2.0, "max": 3.0},
    }
    return Episode({**defaults, **row}, [1_000_000] * 10, [2_000_000] * 10, {"marker": seed})
