"""What every connection has: an end to how long a peer may keep it open without reading."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

#: Seconds for which a peer may read nothing of an answer, or keep a closed connection from ending.
STALL = 10.0
#: Bytes that are read at a time. asyncio would take 256 KiB of memory for every message of 300.
READ = 65536


class Peer:
    """What `sweep` looks at. ``stuck``: since when what was written is not read."""

    stuck: float | None = None
    ending: float | None = None
    loop: Any
    transport: Any

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]  # uvicorn's
        self._own = transport
        if hasattr(transport, "max_size"):  # asyncio's
            transport.max_size = READ

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # type: ignore[misc]  # uvicorn's
        _untie(self._own)

    def pause_writing(self) -> None:
        self.stuck = self.loop.time()
        super().pause_writing()  # type: ignore[misc]  # uvicorn's

    def resume_writing(self) -> None:
        self.stuck = None
        super().resume_writing()  # type: ignore[misc]  # uvicorn's

    def waits(self, now: float) -> str | None:
        """The name of the refusal that ends the connection now, if one does."""
        if self.transport.is_closing():
            self.ending = now if self.ending is None else self.ending
        for since in (self.stuck, self.ending):
            if since is not None and now - since > STALL:
                return "too_slow"
        return None


def _untie(transport: Any) -> None:
    """Take a transport that is at its end out of its own attributes: asyncio keeps some of its
    methods there, bound to it."""
    for name, value in list(getattr(transport, "__dict__", {}).items()):  # uvloop's have none
        if getattr(value, "__self__", None) is transport:
            setattr(transport, name, None)


def sweep(connections: Iterable[Any], now: float, tell: Callable[[str], object]) -> None:
    """End the connections that wait for too long. ``now``: of the event loop."""
    for one in list(connections):
        name = one.waits(now)
        if name is not None:
            tell(name)
            one.transport.abort()
