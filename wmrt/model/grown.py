"""What a grown checkpoint says of itself, for whatever shows one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What every card and table says of a grown checkpoint.
NOTE = "grown from a smaller model: the same policy, no added skill"


def grown_note(provenance: Mapping[str, Any]) -> str | None:
    """The line to show beside results of a grown checkpoint, packed or not; None for any other."""
    origin = provenance.get("grown_from")
    if not isinstance(origin, Mapping):
        return None
    return f"{NOTE} (source {str(origin.get('weights_sha256'))[:12]})"
