"""Who drives while episodes are recorded: the expert, noisy versions of it, chance, or a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wmrt.core.types import ActionSpec

#: Share of episodes per driver. `burst` holds a random action for 0.3 to 1.0 s every few seconds.
DRIVERS: dict[str, float] = {
    "expert": 0.30,
    "noise": 0.30,
    "burst": 0.25,
    "held_random": 0.10,
    "random": 0.05,
}

#: Driver name of episodes that a trained model drives.
MODEL = "model"


@dataclass(frozen=True)
class ModelDriver:
    """A checkpoint that drives, and for how many steps on average its sensor groups are off or on
    (0: always on)."""

    checkpoint: Path
    dwell: float = 0.0

    @property
    def name(self) -> str:
        return f"{MODEL}, sensors off and on for {self.dwell:g} steps" if self.dwell else MODEL


class Policy(Protocol):
    """Drives an episode instead of a `Driver`'s own choice."""

    def reset(self, seed: int) -> None: ...
    def act(self, q: NDArray[np.int64], last: NDArray[np.float32]) -> NDArray[np.float32]: ...


class Driver:
    """Turns the expert's action into the executed one. Stateful within an episode, seeded by it."""

    def __init__(
        self, kind: str, spec: ActionSpec, period: float, rng: np.random.Generator
    ) -> None:
        self.kind, self.rng, self.period = kind, rng, period
        deltas = np.array([dim.max_delta(period) for dim in spec.dims], np.float32)
        self.up, self.down = deltas[:, 0], deltas[:, 1]
        self.last = np.zeros(len(spec), np.float32)
        self.noise = np.zeros(len(spec), np.float32)
        self.held = np.zeros(len(spec), np.float32)
        self.level = rng.uniform(0.05, 0.35)
        self.until = 0
        self.next_burst = int(rng.integers(10, 60))

    def act(self, step: int, expert: NDArray[np.float32]) -> NDArray[np.float32]:
        """The action executed at ``step``; within the actuators' rate limits except for
        `random`."""
        size = len(expert)
        if self.kind == "random":
            self.last = self.rng.uniform(-1, 1, size).astype(np.float32)
            return self.last
        wanted = expert
        if self.kind == "noise":
            # Ornstein-Uhlenbeck, 0.5 s correlation: independent noise averages out in the car's
            # dynamics
            self.noise = 0.8 * self.noise + 0.6 * self.rng.normal(size=size).astype(np.float32)
            wanted = expert + self.level * self.noise
        elif self.kind in ("burst", "held_random"):
            wanted = self._held(step, expert)
        move = np.clip(wanted - self.last, -self.down, self.up)
        self.last = np.clip(self.last + move, -1, 1).astype(np.float32)
        return self.last

    def _held(self, step: int, expert: NDArray[np.float32]) -> NDArray[np.float32]:
        if step >= self.next_burst:
            self.until = step + int(self.rng.integers(3, 11))
            gap = (15, 50) if self.kind == "burst" else (4, 16)
            self.next_burst = self.until + int(self.rng.integers(*gap))
            self.held = self.rng.uniform(-1, 1, len(expert)).astype(np.float32)
        return self.held if step < self.until else expert


def driver_of(seed: int) -> str:
    """Which driver an episode seed gets; a function of the seed, so any shard can be made alone."""
    rng = np.random.default_rng([seed, 0xD20])
    return str(rng.choice(list(DRIVERS), p=list(DRIVERS.values())))
