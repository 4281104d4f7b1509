"""In a fleet, a request has to come to its robot's process: by a header with the robot's name."""

from __future__ import annotations

from typing import Any

from wmrt.service.refusals import Refusal
from wmrt.service.settings import ServeSettings


def routed_by(settings: ServeSettings, scope: Any) -> str | None:
    """The robot's name in the header that the settings name; None if it is not there."""
    if settings.route_by is None:
        return None
    name = settings.route_by.lower().encode()
    found = next((value for key, value in scope["headers"] if key.lower() == name), None)
    return None if found is None else str(found.decode("latin-1"))


def require_routed(settings: ServeSettings, routed: str | None, robot: str) -> None:
    """Raise `Refusal` misrouted for a request that may have come to any process of the fleet."""
    if settings.route_by is not None and routed != robot:
        given = "missing" if routed is None else f"{routed[:80]!r}"
        raise Refusal(
            "misrouted",
            f"the header {settings.route_by} is {given}; it has to be the robot's name, "
            f"{robot[:80]!r}: the fleet finds the robot's process by it",
        )
