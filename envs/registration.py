"""Gymnasium ids of this package. String entry points: registering loads no simulator."""

from __future__ import annotations

import gymnasium

ENVIRONMENTS = {
    "wmrt/Highway-v0": "wmrt.envs.highway:HighwayEnv",
    "wmrt/HighwayOccluded-v0": "wmrt.envs.highway:OccludedHighwayEnv",
}


def register_environments() -> None:
    """Register every id of `ENVIRONMENTS`; doing it twice changes nothing."""
    for name, entry_point in ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry_point)
