"""Observations as messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from wmrt.client.given import required
from wmrt.core.codec import codec
from wmrt.core.errors import StateError, UsageError
from wmrt.core.extras import require
from wmrt.core.wire import MSGPACK, VERSION, Observed, pack_observed, session_text
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
        self._write: Callable[[Observed], bytes] | None = None
        self._pack: Callable[[dict[str, Any]], bytes | str] = partial(json.dumps, default=_plain)
        if encoding == "msgpack":
            self._pack = require("msgspec", "service").msgpack.Encoder(enc_hook=_plain).encode

    def use(self, schema: Mapping[str, Any]) -> None:
        """States are of this schema from now on. `SchemaError` if it has no float32 form and one
        was asked for."""
        if self._encoding == "floats":
            self._write = codec().writer(StateLayout(schema))

    def __call__(self, seen: Observed) -> bytes | str:
        """A message. `StateError` for a state that does not fit, `UsageError` for what is none."""
        if type(seen.state) is not dict:
            required("state", seen.state, Mapping, "a mapping of field names to values")
        if self._write is not None:
            return self._write(seen)
        try:
            if self._encoding == "msgpack":
                return pack_observed(seen, MSGPACK, self._pack(dict(seen.state)))  # type: ignore[arg-type]
            data = {**seen._asdict(), "session": session_text(seen.session)}
            data["state"] = dict(seen.state)
            return self._pack({"kind": "observation", "version": VERSION, **data})
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            said = f"a state that {self._encoding} cannot hold: {str(error)[:200]}"
            raise StateError(said) from None


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's; TypeError for anything else."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is neither a number, a text nor a list")
