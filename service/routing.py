"""In a fleet, a request has to come to its robot's process: by a header with the robot's name."""

from __future__ import annotations

from typing import Any

from wmrt.core.wire import ROBOT_HEADER
from wmrt.service.refusals import Refusal
from wmrt.service.settings import ServeSettings


def routed_by(settings: ServeSettings, scope: Any) -> str | None:
    """The robot's name in the header that the settings name, else in `ROBOT_HEADER`; None if it is
    not there. Several names are one that no robot has."""
    name = (settings.route_by or ROBOT_HEADER).lower().encode()
    found = {value for key, value in scope["headers"] if key.lower() == name}
    return b", ".join(sorted(found)).decode("latin-1") if found else None


def require_routed(settings: ServeSettings, routed: str | None, robot: str) -> None:
    """Raise `Refusal` misrouted for a request that may have come to any process of the fleet: on
    another robot's account, or without a name where the settings ask for one."""
    if routed == robot or (routed is None and settings.route_by is None):
        return
    given = "missing" if routed is None else f"{routed[:80]!r}"
    raise Refusal(
        "misrouted",
        f"the header {settings.route_by or ROBOT_HEADER} is {given}; it has to be the robot's "
        f"name, {robot[:80]!r}: the fleet finds the robot's process by it",
    )
