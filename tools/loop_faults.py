"""What can go wrong around a control loop: sensors, messages, clocks, policies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

STALL = 0.5  # s that a policy sits in one step


@dataclass
class Scene:
    """A run under way, as a fault sees it: what it may put in the place of what happens."""

    clock: Any
    period: float
    state: dict[str, Any] = field(default_factory=dict)
    captured_ns: Any = None
    past: list[tuple[dict[str, Any], int]] = field(default_factory=list)
    broken: str = ""  # what the policy does instead of answering
    calls: int = 1  # of act, in this period


Fault = Callable[[Scene, int], None]


def freeze(scene: Scene, step: int) -> None:
    """New messages, the same reading in them."""
    scene.state = dict(scene.past[-1 - step][0])


def repeat(scene: Scene, step: int) -> None:
    """The same message again and again."""
    scene.state, scene.captured_ns = scene.past[-1 - step]


def nan_burst(scene: Scene, step: int) -> None:
    """No number is one."""
    scene.state = {
        name: math.nan if isinstance(value, float) else value for name, value in scene.state.items()
    }


def dropout(scene: Scene, step: int) -> None:
    """Nothing arrives."""
    scene.state = {}


def reorder(scene: Scene, step: int) -> None:
    """Every other message is an older one."""
    if step % 2:
        scene.state, scene.captured_ns = scene.past[-3]


def jump(seconds: float) -> Fault:
    """The clock jumps once."""

    def fault(scene: Scene, step: int) -> None:
        if step == 0:
            scene.clock.advance(seconds)
            scene.captured_ns = scene.clock.now_ns()

    return fault


def flood(scene: Scene, step: int) -> None:
    """Ten calls where one was due."""
    scene.calls = 10


def broken(how: str) -> Fault:
    """The policy fails: nan, raise, far or stall."""

    def fault(scene: Scene, step: int) -> None:
        scene.broken = how

    return fault


FAULTS: dict[str, Fault] = {
    "sensors freeze": freeze,
    "the same message repeats": repeat,
    "NaN burst": nan_burst,
    "dropout": dropout,
    "messages out of order": reorder,
    "clock jumps 5 s ahead": jump(5.0),
    "clock jumps 5 s back": jump(-5.0),
    "ten calls a period": flood,
    "policy answers NaN": broken("nan"),
    "policy raises": broken("raise"),
    "policy answers 100": broken("far"),
    "policy stalls": broken("stall"),
    "fallback raises, in a dropout": dropout,
    "the log's disk is full": lambda scene, step: None,
}


class Breakable:
    """A model that a scene can make fail."""

    def __init__(self, model: Any, scene: Scene) -> None:
        self._model, self._scene = model, scene

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def step(self, state: Any, previous: Any) -> Any:
        how = self._scene.broken
        if how == "raise":
            raise RuntimeError("the fault")
        if how == "stall":
            time.sleep(STALL)
        answer = self._model.step(state, previous)
        if how in ("nan", "far"):
            answer.action[:] = math.nan if how == "nan" else 100.0
        return answer
