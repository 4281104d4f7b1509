"""The privileged expert: which manoeuvre is best, and how each one would be driven."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wmrt.core.types import ActionSpec
from wmrt.envs.motion import bicycle, bound, following_acceleration, steering_angle
from wmrt.envs.planner import MANOEUVRES, Planner, Scene
from wmrt.envs.state import LANE_WIDTH, LANES

__all__ = ["Expert", "ExpertLabel", "Scene"]

#: Share of the actuators' rate limits that the expert uses: its drives never trip a breaker.
RATE_SHARE = 0.6


@dataclass(frozen=True)
class ExpertLabel:
    """What the expert does now, and its whole decision.

    action: float32[A], the first action of the best manoeuvre.
    chunks: float32[M, H, A], the next H actions under each first manoeuvre (`MANOEUVRES`).
    weights: float32[M], softmax of the manoeuvres' scores; 0 where there is no such lane.
    """

    action: np.ndarray
    chunks: np.ndarray
    weights: np.ndarray


class Expert:
    """Plans from the true scene. Labels depend on the scene and on the action last executed.

    Nothing is remembered of its own decisions: which lane the car is heading for is read from its
    motion, so a label is right whoever drove the car there.

    Args:
        actions: the action specification. period: seconds per step.
        temperature: of the softmax over manoeuvre scores, in units of return.
    """

    def __init__(
        self,
        actions: ActionSpec,
        period: float,
        *,
        temperature: float = 0.1,
        planner: Planner | None = None,
    ) -> None:
        self._planner = planner or Planner()
        self._period = period
        self._temperature = temperature
        self._scale = np.array([(dim.high - dim.low) / 2 for dim in actions.dims])
        deltas = np.array([dim.max_delta(period) for dim in actions.dims])  # [A, (up, down)]
        self._up, self._down = RATE_SHARE * deltas[:, 0], RATE_SHARE * deltas[:, 1]

    def label(self, scene: Scene, previous: np.ndarray, horizon: int) -> ExpertLabel:
        """The label of a scene, given the action executed last (float32[A], normalised)."""
        scores = self._planner.scores(scene)
        best = int(np.argmax(scores))
        weights = np.exp((scores - scores[best]) / self._temperature)
        chunks = self._chunks(scene, previous, horizon)
        return ExpertLabel(
            action=chunks[best, 0].copy(),
            chunks=chunks,
            weights=(weights / weights.sum()).astype(np.float32),
        )

    def _chunks(self, scene: Scene, previous: np.ndarray, horizon: int) -> np.ndarray:
        """Actions of the tracking and following laws under each manoeuvre, float32[M, H, A]."""
        shifts = np.array([shift for shift, _ in MANOEUVRES])
        wanted = np.array([speed for _, speed in MANOEUVRES])
        target = LANE_WIDTH * np.clip(scene.lane + shifts, 0, len(LANES) - 1)
        count, others = len(MANOEUVRES), self._planner.near(scene)
        goal = LANE_WIDTH * others[:, 3]
        drawn_in = np.abs(goal - target[:, None]) < self._planner.overlap
        x, y = np.full(count, scene.x), np.full(count, scene.y)
        heading, speed = np.full(count, scene.heading), np.full(count, scene.speed)
        last = np.tile(np.asarray(previous, np.float64), (count, 1))
        chunks = np.empty((count, horizon, len(self._scale)), np.float32)
        rows = np.arange(count)
        for step in range(horizon):
            gap = others[:, 0] + step * self._period * others[:, 2] - x[:, None]
            beside = drawn_in | (np.abs(others[:, 1] - y[:, None]) < self._planner.overlap)
            gap = np.where(beside & (gap > 0), gap, 1e4)
            nearest = gap.argmin(axis=1)
            acceleration = following_acceleration(
                speed, wanted, gap[rows, nearest], others[nearest, 2]
            )
            steering = steering_angle(target - y, heading, speed)
            action = np.stack((steering, acceleration), axis=1) / self._scale
            last = bound(bound(action, last - self._down, last + self._up), -1.0, 1.0)
            chunks[:, step] = last
            angle, push = (last * self._scale).T
            x, y, heading, speed = bicycle(x, y, heading, speed, angle, push, self._period)
        return chunks
