"""What tests of the client share."""

from __future__ import annotations

import threading
from typing import Any

from tests.service.doubles import CanarySeat
from wmrt.client import Backoff

QUICK: dict[str, Any] = {"deadline": 10.0, "backoff": Backoff(0.01, 0.05)}


def held() -> tuple[threading.Event, CanarySeat]:
    """A seat that steps while the event is set."""
    go = threading.Event()
    go.set()
    return go, CanarySeat(lambda: go.wait(30.0) * 0.0)
