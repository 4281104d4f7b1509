"""Model predictive path integral control (MPPI) over a world model: its settings.

Williams, Wagener, Goldfain, Drews, Rehg, Boots, Theodorou, "Information theoretic MPC for
model-based reinforcement learning", ICRA 2017. As in TD-MPC2 (Hansen, Su, Wang, 2024) samples are
drawn around what a learned policy proposes. It takes the place of the uncontrolled system, so the
weights need no term for the cost of control: ``temperature`` is the price, in return, of leaving
the policy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

from wmrt.control import settings
from wmrt.control.planning.fit import require_fit
from wmrt.control.planning.planner import Planner
from wmrt.control.planning.protocol import ImaginingPolicy
from wmrt.control.planning.sampler import Sampler
from wmrt.core.errors import SafetyError
from wmrt.safety import Limits


@dataclass(frozen=True)
class MPPI:
    """How to plan. The work of a control step is fixed by these numbers, never by the time it took.

    The defaults were tried on training seeds of ``wmrt/Highway-v0``, where a step's reward is at
    most 0.1.

    Attributes:
        budget: imagined steps a control step may take, one step of one sequence each.
        horizon: steps each sequence looks ahead.
        temperature: of the softmax over the sequences' returns, in the unit of the return.
        spread: standard deviation of the noise in normalised units, one or one per actuator.
        smoothness: correlation of the noise from one step to the next, 0 to below 1.
        discount: of the return, per step.
        tail: steps for which the last imagined reward is taken to go on beyond the horizon.
        margin: a plan is taken only if its imagined return exceeds the policy's own by more.
        share: part of the deadline that a control step with planning may take; the rest is for
            consensus channels, breakers, and for a machine that is busy.
        seed: of the generator, which `reset` starts again.

    Raises:
        SafetyError: a value out of its range, named with what is allowed.
    """

    budget: int = 104
    horizon: int = 8
    temperature: float = 0.05
    spread: float | Sequence[float] = 0.3
    smoothness: float = 0.8
    discount: float = 0.99
    tail: int = 30
    margin: float = 0.05
    share: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        settings.count("horizon", self.horizon, 1)
        settings.count("budget", self.budget, 3 * self.horizon)
        settings.count("tail", self.tail, 0)
        settings.count("seed", self.seed, 0)
        _within("temperature", self.temperature, "above 0", lambda x: x > 0)
        _within("margin", self.margin, "at least 0", lambda x: x >= 0)
        _within("smoothness", self.smoothness, "0 to below 1", lambda x: 0 <= x < 1)
        _within("discount", self.discount, "above 0, at most 1", lambda x: 0 < x <= 1)
        _within("share", self.share, "above 0, at most 1", lambda x: 0 < x <= 1)
        for value in self.spreads(1):
            _within("spread", value, "at least 0", lambda x: x >= 0)

    @property
    def samples(self) -> int:
        """Sequences drawn in a control step, the policy's own among them."""
        return self.budget // self.horizon - 1

    @property
    def steps(self) -> int:
        """Steps imagined in a control step, exactly: those of the samples and of the plan made of
        them. At most ``budget``, and by less than one sequence."""
        return (self.samples + 1) * self.horizon

    def spreads(self, actuators: int) -> tuple[float, ...]:
        """One spread per actuator; one number stands for all."""
        if isinstance(self.spread, (list, tuple)):
            return tuple(self.spread)
        return (self.spread,) * actuators  # type: ignore[return-value]

    def to_json(self) -> dict[str, Any]:
        """Plain data: ``MPPI(**data)`` makes it again."""
        return asdict(self)

    def around(
        self,
        model: ImaginingPolicy,
        limits: Limits,
        deadline: float,
        timer: Callable[[], int] = time.perf_counter_ns,
    ) -> Planner:
        """A policy that plans around ``model``, whose memory it uses as its own.

        How long a control step takes is measured here, on a fork of the model.

        Args:
            limits: of the breakers that stand behind.
            deadline: seconds, `math.inf` for none: then nothing is measured.
            timer: nanoseconds.

        Raises:
            SafetyError: a model that cannot imagine, or a spread per actuator of another length.
            UnsupportedError: the budget does not fit the deadline on this machine; gives figures.
        """
        settings.policy("model", model)
        settings.has_methods("model", model, ("imagine", "fork"))
        spreads = self.spreads(len(model.actions))
        if len(spreads) != len(model.actions):
            raise SafetyError(
                f"spread has {len(spreads)} values for the actuators {model.actions.names}; give "
                "one, or one for each"
            )

        def planner(policy: ImaginingPolicy) -> Planner:
            sampler = Sampler(limits, self.horizon, spreads, self.smoothness, self.seed)
            return Planner(policy, self, sampler)

        if math.isinf(deadline):
            return planner(model)
        probe = planner(model.fork())
        timing = require_fit(probe, deadline, timer)
        result = planner(model)
        result.timing = timing
        return result


def _within(name: str, value: Any, allowed: str, test: Callable[[float], bool]) -> None:
    ok = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    settings.require(ok and test(float(value)), name, f"a number {allowed}", value)
