"""What one control step, and one imagined rollout, return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.model.schema import Issue


@dataclass(frozen=True)
class Step:
    """One answer of the world model.

    Attributes:
        action: float32[A] in [-1, 1], the action for now.
        chunk: float32[H, A], the next H actions; row 0 is ``action`` before sampling and noise.
        packed: the chunk as ActionQuant bytes, for transport.
        predicted: the state expected one period after ``action``; None where it expects unknown.
        reward: expected reward of that step, in the training environment's unit.
        proceed: probability that the episode continues.
        fingerprint: 64-bit fingerprint of the state that was read.
        issues: what the schema found wrong with the state; those fields were read as unknown or
        clamped.
        timing_ns: segments of the step: encode, network, decode, total.
    """

    action: NDArray[np.float32]
    chunk: NDArray[np.float32]
    packed: bytes
    predicted: dict[str, Any]
    reward: float
    proceed: float
    fingerprint: int
    issues: tuple[Issue, ...]
    timing_ns: dict[str, int]


@dataclass(frozen=True)
class Rollout:
    """Imagined future under N sequences of T actions.

    Attributes:
        q: int64[N, T, F] integer states after each action (`StateSchema.decode` reads one row).
        reward: float32[N, T] expected reward of each step.
        proceed: float32[N, T] probability that the episode still continues after each step alone.
    """

    q: NDArray[np.int64]
    reward: NDArray[np.float32]
    proceed: NDArray[np.float32]
