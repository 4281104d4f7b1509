"""Sensor groups that switch off and on: the occlusion process of `wmrt/HighwayOccluded-v0`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class SensorDropout:
    """Each group is a two-state Markov chain, independent of the others and of the traffic.

    A group leaves its state with probability ``period / dwell`` at every step, so that the time in
    each state is geometric with mean ``dwell`` seconds and it is off half the time. The first state
    is drawn from that stationary half.

    Args:
        groups: names. dwell: mean seconds in one state. period: seconds per step.
    """

    def __init__(self, groups: Sequence[str], *, dwell: float, period: float) -> None:
        self._groups = tuple(groups)
        self._leave = period / dwell
        self._off = np.zeros(len(groups), bool)
        self._random = np.random.Generator(np.random.PCG64(0))

    def reset(self, seed: int) -> None:
        """Start a new episode from ``seed``."""
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._off = self._random.random(len(self._groups)) < 0.5

    def advance(self) -> None:
        """One step of ``period`` seconds."""
        self._off ^= self._random.random(len(self._groups)) < self._leave

    @property
    def hidden(self) -> frozenset[str]:
        """Names of the groups that are off now."""
        return frozenset(group for group, off in zip(self._groups, self._off, strict=True) if off)
