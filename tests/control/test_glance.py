"""A controller whose breakers glance does, records and counts what one whose breakers look at
everything does."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.control.support import STATE, UNFIT, FakePolicy, FakeTimer, answer
from tests.safety.support import PERIOD
from wmrt.control import Controller, TimedController, default_limits
from wmrt.control.convert import as_action, as_chunk
from wmrt.core.clock import ManualClock
from wmrt.core.errors import SafetyError
from wmrt.safety import Breakers

ODD_STATES: tuple[Any, ...] = (
    UNFIT, None, {**STATE, "gap": math.nan}, {**STATE, "lane": "middle"}, {**STATE, "wet": None},
    {**STATE, "pose": [1.0, 2.0]}, {**STATE, "speed": 41.0}, {"state": STATE}, {**STATE, 1: 2},
)  # fmt: skip


class Notes:
    """A recorder that writes everything down."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def record(self, outcome: Any, inputs: Any) -> None:
        self.kept.append(repr((outcome, inputs)))

    def command(self, name: str, arguments: Mapping[str, Any], now_ns: int) -> None:
        self.kept.append(repr((name, dict(arguments), now_ns)))


def replies(rng: random.Random, timer: FakeTimer) -> Any:
    """Answers that drive gently; now and then late, too fast, out of range, or no answer at all."""

    def reply(state: Any, previous: Any) -> Any:
        timer.advance(0.09 if rng.random() < 0.05 else 0.001)
        kind, far = rng.random(), 0.1 if rng.random() < 0.9 else 1.0
        if kind < 0.02:
            raise RuntimeError
        if kind < 0.04:
            return answer(np.float32([math.nan, 0.0]))
        action = np.float32(previous) + np.float32([rng.uniform(-far, far) for _ in range(2)])
        given = [action, action.tolist(), action.astype(np.float64)][rng.randrange(3)]
        predicted = {"speed": rng.choice((20.0, 20.0, None, 39.0)), "gap": 3.0, "pose": [0.0] * 3}
        if rng.random() < 0.02:
            predicted["gap"] = rng.choice((120.0, "near", -math.inf))
        return answer(given, chunk=np.tile(action, (6, 1)), predicted=predicted)

    return reply


def driven(kind: type[Controller], glance: bool, seed: int) -> tuple[list[Any], int]:
    """All that a controller lets out in 400 steps, and how many of them were the policy's."""
    rng, clock, timer, notes = random.Random(seed), ManualClock(), FakeTimer(), Notes()
    policy = FakePolicy(replies(rng, timer))
    breakers = Breakers(
        default_limits(policy.schema, policy.actions, PERIOD, latch_opens=20), glance=glance
    )
    controller = kind(
        policy, PERIOD, 0.05, breakers, recorder=notes, clock=clock, timer=timer, max_age=0.3,
        fallback=lambda state, last: (0.0, -0.1), watchdog=False,
    )  # fmt: skip
    told: list[Any] = []
    for _ in range(400):
        clock.advance(rng.choice((PERIOD, PERIOD, PERIOD, 0.07, 0.0, 0.2)))
        if rng.random() < 0.03:
            operated(rng, controller)
        age = rng.choice((None, 1, 1, 10**7, 10**9 if rng.random() < 0.1 else 2))
        captured = None if age is None else clock.now_ns() - age
        seen = rng.choice(ODD_STATES) if rng.random() < 0.05 else STATE
        told += [controller.act(seen, captured).tobytes(), repr(controller.last)]
    told += [repr(controller.stats()), repr(breakers.events.snapshot()), notes.kept]
    controller.close()
    return told, sum("'policy'" in one for one in told[1:800:2])


def operated(rng: random.Random, controller: Controller) -> None:
    kind = rng.randrange(8)
    try:
        if kind == 0:
            controller.disengage()
        elif kind == 1:
            controller.estop(rng.random() < 0.5)
        elif kind == 2:
            controller.reset([0.1, -0.1])
        else:
            controller.estop(False)
            if controller.breakers.state.value == "latched":
                controller.reset_latch("Ada")
            controller.engage("Ada")
    except SafetyError:
        pass  # not yet


@pytest.mark.parametrize("kind", [Controller, TimedController])
def test_all_of_it(kind: type[Controller], seed: int) -> None:
    quick, steps = driven(kind, True, seed)
    whole, _ = driven(kind, False, seed)
    assert quick == whole
    assert steps > 0


class Plain(np.ndarray):
    """Not what a conversion looks for first."""


@pytest.mark.parametrize(
    "shape", [(2,), (3,), (), (1, 2), (4, 2), (6, 2), (0, 2), (6, 3), (2, 2, 2), (5, 2, 0)]
)
def test_a_float32_array_is_read_as_every_other(shape: tuple[int, ...], seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    values.reshape(-1)[::3] = -0.0
    values.reshape(-1)[1::7] = np.nan
    for given in (values, values[::-1] if shape else values, np.asfortranarray(values)):
        other = given.view(Plain)
        assert repr(as_action(given, 2)) == repr(as_action(other, 2))
        assert repr(as_chunk(given, 2, 4)) == repr(as_chunk(other, 2, 4))
