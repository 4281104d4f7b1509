"""What the safety tests share: action specs, and a watch that knows only what it has seen leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wmrt.core.types import ActionDim, ActionSpec
from wmrt.safety import Breakers, Decision, Limits, Proposal

PERIOD = 0.1
PERIOD_NS = 100_000_000
DRIVING = ActionSpec(
    (
        ActionDim("steering", "rad", -0.06, 0.06, rate_up=0.30, rate_down=0.30),
        ActionDim("acceleration", "m/s^2", -5.0, 5.0, rate_up=15.0, rate_down=30.0),
    )
)
#: Nothing here is a round number in binary, and neutral is not the middle.
ODD = ActionSpec(
    (
        ActionDim("valve", "bar", 0.7, 3.3, rate_up=1.7, rate_down=0.9),
        ActionDim("wheel", "rpm", -333.0, 777.0, rate_up=4001.0, rate_down=2999.0),
        ActionDim("arm", "deg", -10.1, 10.3, rate_up=0.3, rate_down=700.0),
    )
)


def limits(spec: ActionSpec = DRIVING, **options: Any) -> Limits:
    options.setdefault("period", PERIOD)
    return Limits.from_spec(spec, **options)


class Watch:
    """Checks every action that leaves against the ones seen before, never asking the breakers.

    Bounds: finite, float32, in [-1, 1]; from the last action at most the rate times the time that
    passed (none if the clock did not advance, at most two periods), and at most the rate times one
    nominal period per step. The slack of 1e-15 is four ulps of float64 at the bound.
    """

    def __init__(self, spec: ActionSpec, start: Sequence[float], period: float = PERIOD) -> None:
        self.spec, self.period = spec, period
        self.restart(start)
        self.seen = 0

    def restart(self, start: Sequence[float]) -> None:
        self.last = [float(value) for value in start]
        self.at: int | None = None

    def see(self, now_ns: int, action: Sequence[float]) -> None:
        dt = self.period if self.at is None else (now_ns - self.at) * 1e-9
        by_clock = min(max(dt, 0.0), 2 * self.period)
        assert len(action) == len(self.spec)
        for dim, before, value in zip(self.spec.dims, self.last, action, strict=True):
            context = f"{dim.name}: {before!r} -> {value!r} after {dt} s"
            assert math.isfinite(value) and -1.0 <= value <= 1.0, context
            assert float(np.float32(value)) == value, f"{context}: not a float32"
            for seconds in (by_clock, self.period):
                up, down = dim.max_delta(seconds)
                assert value - before <= up * (1 + 1e-15), f"{context}, allowed {up}"
                assert before - value <= down * (1 + 1e-15), f"{context}, allowed {down}"
        self.last, self.at = [float(value) for value in action], now_ns
        self.seen += 1


class Rig:
    """Breakers on a clock of their own, each action watched."""

    def __init__(self, spec: ActionSpec = DRIVING, **options: Any) -> None:
        self.breakers = Breakers(limits(spec, **options), events=100_000)
        self.watch = Watch(spec, self.breakers.reference)
        self.now_ns = 0

    def step(self, action: Any, dt: float = PERIOD, **rest: Any) -> Decision:
        """One step: ``action`` is a tuple, a `Proposal`, or None for bad input."""
        self.now_ns += round(dt * 1e9)
        proposal = action if isinstance(action, Proposal) else Proposal(action)
        self.breakers.begin(self.now_ns)
        faults = rest.pop("faults", ())
        if not self.breakers.admit(faults, rest.pop("notes", ())):
            proposal = None
        decision = self.breakers.decide(proposal, **rest)
        self.watch.see(self.now_ns, decision.action)
        return decision

    def steps(self, count: int, action: Any, **rest: Any) -> Decision:
        for _ in range(count):
            decision = self.step(action, **rest)
        return decision

    def causes(self) -> list[str]:
        """Causes recorded so far, in order."""
        return [event.cause.value for event in self.breakers.events.snapshot()]
