"""A client that says what it is told to, however wrong."""

from __future__ import annotations

import json
import time
from typing import Any

from wmrt.client.address import Address
from wmrt.client.channel import Channel, Lost
from wmrt.core.wire import (
    FLOATS,
    VERSION,
    Acted,
    Observed,
    pack_observed,
    session_number,
    unpack_acted,
)
from wmrt.core.wire_state import StateLayout

#: Seconds after which a test has failed. At a load of 20 on two cores 10 were not enough.
PATIENCE = 60.0


def state(canary: float = 0.0, **values: Any) -> dict[str, Any]:
    """A whole one of `doubles.SCHEMA`."""
    return {
        "canary": canary,
        "gap": 5.0,
        "pose": [1.0, None],
        "lane": "left",
        "wet": False,
    } | values


class Raw:
    """One connection to a service."""

    def __init__(self, address: str, token: str | None = None) -> None:
        self.channel = Channel(Address(address), token, time.monotonic() + PATIENCE, None)
        self.opened: dict[str, Any] = {}

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.drop()

    def open(self, robot: str = "r1", **wanted: Any) -> dict[str, Any]:
        self.say({"kind": "open", "version": VERSION, "robot": robot, **wanted})
        self.opened = self.hear()
        if self.opened["kind"] == "opened" and "schema" in self.opened:
            self.layout = StateLayout(self.opened["schema"])
        return self.opened

    def say(self, message: bytes | str | dict[str, Any]) -> None:
        data = json.dumps(message) if isinstance(message, dict) else message
        self.channel.send(data, time.monotonic() + PATIENCE)

    def hear(self, seconds: float = PATIENCE) -> Any:
        """A JSON object, or an `Acted`."""
        message = self.channel.receive(time.monotonic() + seconds)
        return json.loads(message) if isinstance(message, str) else unpack_acted(message)

    def seen(self, sequence: int, **changes: Any) -> Observed:
        own = self.opened
        seen = Observed(
            *(own["robot"], session_number(own["session"]), own["epoch"], sequence, state())
        )
        return seen._replace(**changes)

    def packed(self, sequence: int, **changes: Any) -> bytes:
        seen = self.seen(sequence, **changes)
        return pack_observed(seen, FLOATS, self.layout.pack(seen.state))

    def ask(self, sequence: int, **changes: Any) -> Any:
        """An observation, and what comes back."""
        self.say(self.packed(sequence, **changes))
        return self.hear()

    def acted(self, sequence: int, **changes: Any) -> Acted:
        got = self.ask(sequence, **changes)
        assert isinstance(got, Acted), got
        return got

    def refused(self, sequence: int, **changes: Any) -> str:
        """The name of the refusal."""
        got = self.ask(sequence, **changes)
        assert isinstance(got, dict) and got["kind"] == "refused", got
        assert got["sequence"] in (sequence, None)
        return str(got["error"]["name"])

    def closed(self, seconds: float = 10.0) -> int | None:
        """The code that it is closed with; what comes before is dropped."""
        end = time.monotonic() + seconds
        try:
            while True:
                self.channel.receive(end)
        except Lost as error:
            return error.code
