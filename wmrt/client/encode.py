"""Observations as messages."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from wmrt.core.errors import UsageError
from wmrt.core.extras import require
from wmrt.core.wire import FLOATS, MSGPACK, VERSION, Observed, pack_observed, session_text
from wmrt.core.wire_state import StateLayout

ENCODINGS = ("floats", "msgpack", "json")


class Encoder:
    """Makes messages of observations.

    Args:
        encoding: one of `ENCODINGS`.

    Raises:
        UsageError: another one. MissingExtraError: msgpack without msgspec.
    """

    def __init__(self, encoding: str) -> None:
        if encoding not in ENCODINGS:
            raise UsageError(f"encoding {encoding!r}: {', '.join(ENCODINGS)}")
        self._encoding = encoding
        self._layout: StateLayout | None = None
        self._msgpack: Callable[[Any], bytes] = (
            require("msgspec", "service").msgpack.encode if encoding == "msgpack" else repr  # type: ignore[assignment]
        )

    def use(self, schema: Mapping[str, Any]) -> None:
        """States are of this schema from now on. `SchemaError` if it has no float32 form and one
        was asked for."""
        if self._encoding == "floats":
            self._layout = StateLayout(schema)

    def __call__(self, seen: Observed) -> bytes | str:
        """A message, stamped with the time it is made. `StateError` for a state that does not
        fit."""
        seen = seen._replace(sent_ns=time.monotonic_ns())
        if self._layout is not None:
            return pack_observed(seen, FLOATS, self._layout.pack(seen.state))
        if self._encoding == "msgpack":
            return pack_observed(seen, MSGPACK, self._msgpack(dict(seen.state)))
        data = {**seen._asdict(), "session": session_text(seen.session), "state": dict(seen.state)}
        return json.dumps({"kind": "observation", "version": VERSION, **data})
