"""What a film of one episode is made from, taken while the episode was driven and scored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrt.cli.driving.episode import Outcome


@dataclass
class Reel:
    """The poses of all vehicles after each step, and the words under the picture.

    A rendered and packed frame takes 16 ms of CPU; this is done after the drive, so that a step
    runs with warm caches whether there is a film or not.
    """

    seed: int
    poses: list[NDArray[np.float64]] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)

    def shoot(self, env: Any, step: int, outcome: Outcome) -> None:
        """Keep the moment after ``step``."""
        self.poses.append(env.poses())
        self.captions.append(caption(env, step, outcome))


def caption(env: Any, step: int, outcome: Outcome) -> str:
    """Time, speed, actions in physical units, and what the breakers say."""
    words = [f"{step * env.period:4.1f} s", f"{env.telemetry()['speed'] * 3.6:3.0f} km/h"]
    for dim, value in zip(env.action_spec.dims, outcome.action, strict=True):
        digits = 3 if dim.high < 1 else 1
        words.append(f"{dim.name} {dim.to_physical(float(value)):+.{digits}f} {dim.unit}")
    if outcome.state is not None:
        words.append(f"breakers {outcome.state.replace('_', ' ')}")
    if outcome.source != "policy":
        words.append(f"action: {outcome.source}")
    words += [f"trip at level {level}" for level in outcome.tripped]
    return "   ".join(words)
