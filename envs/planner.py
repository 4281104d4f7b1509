"""The expert's privileged search: 36 two-stage manoeuvres rolled out against predicted traffic.

A manoeuvre is a lane change of -1, 0 or +1 and a wanted speed; the second stage starts after 2 s
and lasts to the horizon. Other cars keep their speed and steer to the lane they want (known here,
hidden from the driver). Everything is vectorised over manoeuvres x vehicles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np

from wmrt.envs.motion import LATERAL_ACCELERATION as SIDE
from wmrt.envs.motion import Array, bound, following_acceleration, lateral_speed
from wmrt.envs.state import LANE_WIDTH, LANES

SHIFTS = (-1, 0, 1)
SPEEDS = (30.0, 22.0)
#: First decisions, in the order of every label: (lane change, wanted speed).
MANOEUVRES: tuple[tuple[int, float], ...] = tuple(product(SHIFTS, SPEEDS))

_PATHS = np.array(list(product(SHIFTS, SHIFTS)))  # [9, 2] lane changes of the two stages
_PACES = np.array(list(product(SPEEDS, SPEEDS)))  # [4, 2] wanted speeds of the two stages
_LAST = len(LANES) - 1


@dataclass(frozen=True)
class Scene:
    """True positions: the car (m, m, m/s, rad), others float64[N, 4] of x, y, vx, wanted lane."""

    x: float
    y: float
    speed: float
    heading: float
    others: np.ndarray

    @property
    def lane(self) -> int:
        """Index of the nearest lane."""
        return min(max(round(self.y / LANE_WIDTH), 0), _LAST)

    @property
    def heading_for(self) -> int:
        """Index of the lane that the car's present motion leads to."""
        ahead = self.y + 0.7 * self.speed * math.sin(self.heading)
        return min(max(round(ahead / LANE_WIDTH), 0), _LAST)


@dataclass(frozen=True)
class Planner:
    """Rolls out and scores the manoeuvres. Scores are in units of episode return.

    Args:
        horizon, dt, stage: seconds looked ahead, per step, and before the second decision.
        reach: (behind, ahead) in m; vehicles outside do not count.
        overlap: lateral distance between centres below which two cars can touch, m.
        contact: distance between centres, along the road, that counts as a collision, m.
        ahead_soft, behind_soft: seconds of closing speed added to the soft distance.
    """

    horizon: float = 7.0
    dt: float = 0.25
    stage: float = 2.0
    reach: tuple[float, float] = (60.0, 150.0)
    overlap: float = 2.4
    contact: float = 5.8
    soft: float = 9.0
    ahead_soft: float = 0.8
    behind_soft: float = 1.2
    soft_weight: float = 0.5
    crash: float = 4.0
    crash_fade: float = 6.0
    discount: float = 0.95
    change: float = 0.06
    open_road: float = 0.7

    def scores(self, scene: Scene) -> np.ndarray:
        """Best score of each first manoeuvre, float64[6]; -inf where there is no such lane."""
        others = self.near(scene)
        steps = round(self.horizon / self.dt)
        times = self.dt * np.arange(1, steps + 1)
        ox = others[:, 0] + np.outer(times, others[:, 2])
        goal = LANE_WIDTH * others[:, 3]
        oy = goal + np.outer(_settling(times), others[:, 1] - goal)
        lanes = np.clip(scene.lane + np.cumsum(_PATHS, axis=1), 0, _LAST)
        target, y = self._lateral(scene, lanes, times)
        x, v = self._longitudinal(scene, y, target, ox, oy, goal, others[:, 2])
        value = self._value(x, v, y, ox, oy, others[:, 2])
        value += self._final(x, v, target, ox, goal, others[:, 2])
        moves = (lanes[:, 0] != scene.heading_for) + 1.0 * (lanes[:, 1] != lanes[:, 0])
        value -= self.change * moves[:, None]
        wanted = scene.lane + np.cumsum(_PATHS, axis=1)
        value[(wanted != lanes).any(axis=1)] = -np.inf
        best: np.ndarray = value.reshape(3, 3, 2, 2).max(axis=(1, 3)).reshape(6)
        return best

    def near(self, scene: Scene) -> np.ndarray:
        """Rows of the others that matter; one very far away when there is nobody."""
        dx = scene.others[:, 0] - scene.x
        near = scene.others[(dx > -self.reach[0]) & (dx < self.reach[1])]
        if not len(near):
            near = np.array([[scene.x + 1e4, 0.0, 30.0, 0.0]])
        return near

    def _lateral(self, scene: Scene, lanes: Array, times: Array) -> tuple[Array, Array]:
        """Target and actual y of the nine lane paths, each float64[T, 9]."""
        second = times[:, None] > self.stage + 1e-9
        target = LANE_WIDTH * np.where(second, lanes[:, 1], lanes[:, 0])
        path = np.empty_like(target)
        y = np.full(len(_PATHS), scene.y)
        vy = np.full(len(_PATHS), scene.speed * math.sin(scene.heading))
        most = SIDE * self.dt
        for t in range(len(times)):
            change = lateral_speed(target[t] - y) - vy
            new = vy + np.minimum(np.maximum(change, -most), most)
            y = y + 0.5 * self.dt * (vy + new)
            vy = new
            path[t] = y
        return target, path

    def _longitudinal(
        self, scene: Scene, y: Array, target: Array, ox: Array, oy: Array, goal: Array, ov: Array
    ) -> tuple[Array, Array]:
        """Position and speed of all manoeuvres, each float64[T, 9, 4]."""
        steps, paths = y.shape
        count = len(ov)
        blocks = np.abs(oy[:, None, :] - y[:, :, None]) < self.overlap
        blocks |= np.abs(goal - target[:, :, None]) < self.overlap
        blocked = np.where(blocks, 0.0, 1e4)[:, :, None, :]
        second = round(self.stage / self.dt)
        x = np.full((paths, len(_PACES)), scene.x)
        v = np.full((paths, len(_PACES)), scene.speed)
        xs, vs = np.empty((2, steps, paths, len(_PACES)))
        rows = np.arange(paths * len(_PACES))
        before = np.concatenate((ox[:1] - self.dt * ov, ox[:-1]))
        for t in range(steps):
            gap = before[t] - x[:, :, None]
            gap[gap <= 0.0] = 1e4
            flat = (gap + blocked[t]).reshape(-1, count)
            nearest = flat.argmin(axis=1)
            distance = flat[rows, nearest].reshape(x.shape)
            front = ov[nearest].reshape(x.shape)
            a = following_acceleration(v, _PACES[:, int(t >= second)], distance, front)
            new = np.maximum(v + a * self.dt, 0.0)
            x = x + 0.5 * self.dt * (v + new)
            v = new
            xs[t], vs[t] = x, v
        return xs, vs

    def _value(self, x: Array, v: Array, y: Array, ox: Array, oy: Array, ov: Array) -> Array:
        """Discounted reward less the costs of closeness and collision, float64[9, 4]."""
        steps = len(x)
        times = self.dt * np.arange(1, steps + 1)[:, None, None]
        dx = ox[:, None, None, :] - x[..., None]
        closing = np.where(dx > 0, v[..., None] - ov, ov - v[..., None])
        np.maximum(closing, 0.0, out=closing)
        beside = (np.abs(oy[:, None, :] - y[:, :, None]) < self.overlap)[:, :, None, :]
        apart = np.where(beside, np.abs(dx), 1e4)
        alive = np.logical_and.accumulate((apart >= self.contact).all(axis=-1), axis=0)
        margin = self.soft + np.where(dx > 0, self.ahead_soft, self.behind_soft) * closing
        close = np.maximum(1.0 - apart / margin, 0.0).max(axis=-1)
        speed = bound((v - 20.0) / 10.0, 0.0, 1.0)
        right = (y / (LANE_WIDTH * _LAST))[:, :, None]
        reward = (1.0 + 0.4 * speed + 0.1 * right) / 1.5 - self.soft_weight * close
        fade = self.discount**times
        value: Array = (alive * fade * reward).sum(axis=0) * self.dt
        hit = self.dt * alive.sum(axis=0)
        value -= np.where(alive[-1], 0.0, self.crash * np.exp(-hit / self.crash_fade))
        return value

    def _final(self, x: Array, v: Array, target: Array, ox: Array, goal: Array, ov: Array) -> Array:
        """Worth of the free road ahead at the horizon, on which speed can still be kept."""
        dx = ox[-1] - x[-1][..., None]
        ahead = (np.abs(goal - target[-1][:, None]) < self.overlap)[:, None, :] & (dx > 0)
        return self.open_road * np.minimum(np.where(ahead, dx, 80.0).min(axis=-1), 80.0) / 80.0


def _settling(times: Array) -> Array:
    """Share of a lateral error left after a time: highway-env's cascade (0.6 s, 0.2 s)."""
    return (0.6 * np.exp(-times / 0.6) - 0.2 * np.exp(-times / 0.2)) / 0.4
