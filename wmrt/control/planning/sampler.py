"""Action sequences around a given one, within box and rate limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.safety import Limits
from wmrt.safety.judge import clamp_to_box, reach

Plans = NDArray[np.float32]


class Sampler:
    """Draws sequences of ``horizon`` actions; a generator of its own, never the global one.

    Noise is a first-order autoregression over the horizon: standard deviation ``spread`` at every
    step, correlation ``smoothness`` from one step to the next. Actuators that cannot follow white
    noise would average it away.

    Args:
        limits: of the breakers behind; their box and their rate at one period.
        spread: normalised, one per actuator.
        smoothness: 0 (white) to below 1.
    """

    def __init__(
        self, limits: Limits, horizon: int, spread: Sequence[float], smoothness: float, seed: int
    ) -> None:
        self.horizon, self._seed = horizon, seed
        self._boxes, self._deltas = limits.boxes(1.0), limits.deltas(limits.period)
        self._low = np.array([box.low for box in self._boxes])
        self._high = np.array([box.high for box in self._boxes])
        self._up, self._down = np.array(self._deltas).T
        self._spread = np.array(spread, np.float64)
        self._smoothness = smoothness
        self.reset()

    def reset(self) -> None:
        """Start the generator again: the same draws follow."""
        self._generator = np.random.Generator(np.random.PCG64(self._seed))

    def draw(self, base: Any, before: Any, count: int) -> Plans:
        """float32[count, horizon, A]; row 0 is ``base`` itself, as far as it is within the limits.

        Args:
            base: float[horizon, A].
            before: float[A], the action sent last: the first one's change is measured from it.
        """
        noise = self._generator.standard_normal((count, *np.shape(base)))
        noise[0] = 0.0
        fresh = math.sqrt(1.0 - self._smoothness**2)
        for t in range(1, self.horizon):
            noise[:, t] = self._smoothness * noise[:, t - 1] + fresh * noise[:, t]
        plans = np.asarray(base, np.float64) + self._spread * noise
        last = np.asarray(before, np.float64)
        for t in range(self.horizon):
            inside = np.clip(plans[:, t], self._low, self._high)
            plans[:, t] = last = np.clip(inside, last - self._down, last + self._up)
        return plans.astype(np.float32)

    def admit(self, plan: Any, before: Any) -> Plans:
        """``plan`` float[horizon, A] exactly as the breakers would let it pass, float32."""
        last = tuple(float(value) for value in before)
        rows = []
        for row in np.asarray(plan, np.float64).tolist():
            last = reach(clamp_to_box(row, self._boxes), last, self._deltas)
            rows.append(last)
        return np.array(rows, np.float32)
