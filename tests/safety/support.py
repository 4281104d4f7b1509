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


def start_of(made: Limits, measured: Sequence[float] | None = None) -> tuple[float, ...]:
    """Where an episode starts, by numpy: float32, inside the range of each actuator."""
    values = made.neutral if measured is None else measured
    start = []
    for dim, own, value in zip(made.spec.dims, made.dims, values, strict=True):
        low, high = dim.to_normalised(own.low), dim.to_normalised(own.high)
        near = np.float32(min(max(value, low), high))
        if float(near) > high:
            near = np.nextafter(near, np.float32(-2))
        if float(near) < low:
            near = np.nextafter(near, np.float32(2))
        start.append(float(near))
    return tuple(start)


class Watch:
    """Checks every action that leaves against the ones seen before, never asking the breakers.

    Bounds: finite, float32, in the range of its actuator; from the last action at most the rate
    times the time that passed: none if the clock did not advance, one period for the first one, and
    no more than what is stated for one step, which is one period or two. The slack of 1e-15 is four
    ulps of float64 at the bound.

    Args:
        made: of these the stated values alone are read; or actuators, for their own limits.
        start: the action at the start, else neutral.
    """

    def __init__(self, made: Limits | ActionSpec, start: Sequence[float] | None = None) -> None:
        self.made = limits(made) if isinstance(made, ActionSpec) else made
        assert 0 < self.made.step_periods <= 2
        self.restart(start_of(self.made) if start is None else start)
        self.seen = 0

    def restart(self, start: Sequence[float]) -> None:
        self.last = [float(value) for value in start]
        self.at: int | None = None

    def see(self, now_ns: int, action: Sequence[float]) -> None:
        dt = self.made.period if self.at is None else (now_ns - self.at) * 1e-9
        seconds = min(max(dt, 0.0), self.made.step_periods * self.made.period)
        assert len(action) == len(self.made.spec)
        pairs = zip(self.made.spec.dims, self.made.dims, strict=True)
        for (dim, own), before, value in zip(pairs, self.last, action, strict=True):
            context = f"{dim.name}: {before!r} -> {value!r} after {dt} s"
            low, high = dim.to_normalised(own.low), dim.to_normalised(own.high)
            assert math.isfinite(value) and low <= value <= high, context
            assert float(np.float32(value)) == value, f"{context}: not a float32"
            scale = 2.0 * seconds / (dim.high - dim.low) * (1 + 1e-15)
            assert value - before <= own.rate_up * scale, context
            assert before - value <= own.rate_down * scale, context
        self.last, self.at = [float(value) for value in action], now_ns
        self.seen += 1


class Rig:
    """Breakers on a clock of their own, each action watched."""

    def __init__(self, spec: ActionSpec = DRIVING, **options: Any) -> None:
        self.breakers = Breakers(limits(spec, **options), events=100_000)
        self.watch = Watch(self.breakers.limits)
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
