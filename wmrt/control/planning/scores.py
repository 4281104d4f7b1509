"""What imagined futures are worth, and how much each counts. All in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def scores(reward: Any, proceed: Any, discount: float, tail: int) -> Values:
    """Discounted reward float64[N] of N imagined futures; not finite where any part is not.

    The reward of step t counts with ``discount ** t`` times the probability that the episode got
    there. Beyond the horizon the last step's reward is taken to go on for ``tail`` steps: without
    it a crash at the end of the horizon would cost nothing.

    Args:
        reward, proceed: float[N, T], see `Rollout`.
    """
    gains = np.asarray(reward, np.float64)
    goes_on = np.asarray(proceed, np.float64)
    horizon = gains.shape[1]
    powers = discount ** np.arange(horizon + tail, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        alive = np.cumprod(goes_on, axis=1)
        reached = np.concatenate([np.ones((len(gains), 1)), alive[:, :-1]], axis=1)
        total = (powers[:horizon] * reached * gains).sum(axis=1)
        beyond = powers[horizon:].sum() * alive[:, -1] * gains[:, -1]
        return np.asarray(total + beyond, np.float64)


def weights(values: Values, temperature: float) -> Values | None:
    """Softmax float64[N] of ``values / temperature``; None if no value is finite.

    A value that is not finite weighs exactly 0, plus infinity too: it is a failure of the model,
    not a good future.
    """
    finite = np.isfinite(values)
    if not finite.any():
        return None
    with np.errstate(over="ignore", under="ignore"):
        safe = np.where(finite, values, values[finite].max())
        unnormalised = np.where(finite, np.exp((safe - safe.max()) / temperature), 0.0)
    return np.asarray(unnormalised / unnormalised.sum(), np.float64)
