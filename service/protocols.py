"""uvicorn's HTTP and WebSocket, with an end to what a peer can keep open or pile up.

uvicorn counts requests. A connection that sends none, half a header line now and then, or that
reads no answer was kept for ever: nothing bounded how many, nor what was written to them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from wmrt.service.direct import DirectWebSocket
from wmrt.service.logs import CONNECTIONS

#: Seconds for a request's head, from the connection or the first byte after the last answer.
HEAD = 10.0
#: Bytes that are parsed at a time. h11 looks for the end of a head before it looks at its size: one
#: of 20 000 lines, in one piece, kept the event loop for 0.8 s on a busy machine.
PIECE = 16384
#: Seconds for which a peer may read nothing of an answer, or keep a closed connection from ending.
STALL = 10.0
#: TCP connections beyond the limit of requests and WebSockets: probes, and clients that are told.
SPARE = 64
#: Frames of one message. A message of empty ones never reaches its limit of bytes.
FRAGMENTS = 1024

_FULL = (
    b'{"kind":"refused","version":1,"error":{"name":"too_many_connections",'
    b'"message":"all connections are in use"},"sequence":null}'
)
_REFUSED = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n"
_REFUSED += b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_FULL), _FULL)


class Peer:
    """What `sweep` looks at. ``stuck``: since when what was written is not read."""

    stuck: float | None = None
    ending: float | None = None
    loop: Any
    transport: Any

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]  # uvicorn's
        self._own = transport

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # type: ignore[misc]  # uvicorn's
        _untie(self._own)

    def waits(self, now: float) -> str | None:
        """The name of the refusal that ends the connection now, if one does."""
        if self.transport.is_closing():
            self.ending = now if self.ending is None else self.ending
        for since in (self.stuck, self.ending):
            if since is not None and now - since > STALL:
                return "too_slow"
        return None


class Http(Peer, H11Protocol):
    """A connection on which requests come.

    Attributes:
        idle: since when a request's head is waited for; None while one is answered.
    """

    #: Connections at one time, and what gets the names of refusals. `protocols` sets them.
    limit = 0
    tell: Callable[[str], object]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = logging.getLogger(CONNECTIONS)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle: float | None = self.loop.time()
        if len(self.connections) > self.limit:
            self._make_room()

    def _make_room(self) -> None:
        """The connection that waits for longest goes; without one, this one."""
        left = [one for one in self.connections if not one.transport.is_closing()]
        if len(left) <= self.limit:
            return
        self.tell("too_many_connections")
        waiting = [
            one
            for one in left
            if isinstance(one, Http) and one is not self and one.idle is not None
        ]
        if waiting:
            min(waiting, key=lambda one: one.idle or 0.0).transport.abort()
        else:
            self.transport.write(_REFUSED)
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        waited = self._waits_for_a_request()
        for at in range(0, len(data), PIECE):
            super().data_received(data[at : at + PIECE])
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                break
        if not self._waits_for_a_request():
            self.idle = None
        elif not waited or self.idle is None:
            self.idle = self.loop.time()

    def _waits_for_a_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The next one may have come with the last one.
        self.idle = self.loop.time() if self._waits_for_a_request() else None

    def pause_writing(self) -> None:
        self.stuck = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stuck = None
        super().resume_writing()

    def waits(self, now: float) -> str | None:
        if self.idle is not None and now - self.idle > HEAD:
            return "too_slow"
        return super().waits(now)


class WebSocket(Peer, WebSocketsSansIOProtocol):
    """A WebSocket."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.conn.parser.close()  # a generator of the object that holds it
        self.conn.parser_exc = None  # whose traceback holds it, too

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = self.conn.logger = logging.getLogger(CONNECTIONS)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.close_sent:  # by an answer of HTTP too, which uvicorn takes for none: an error
            self.handshake_complete = True

    def pause_writing(self) -> None:
        self.stuck = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stuck = None
        super().resume_writing()

    def handle_ping(self) -> None:
        # A peer that asks and does not read would have its pongs pile up here.
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= FRAGMENTS and not event.fin:
            self.conn.fail(1009, f"a message of more than {FRAGMENTS} frames")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        # What is left to write would keep it open, and the robot held, until somebody reads it.
        if self.transport.get_write_buffer_size():
            self.transport.abort()


class ShortWebSocket(WebSocket, DirectWebSocket):
    """A WebSocket whose binary messages go the short way."""


def _untie(transport: Any) -> None:
    """Take a transport that is at its end out of its own attributes: asyncio keeps some of its
    methods there, bound to it."""
    for name, value in list(vars(transport).items()):
        if getattr(value, "__self__", None) is transport:
            setattr(transport, name, None)


def protocols(
    limit: int, tell: Callable[[str], object], direct: bool
) -> tuple[type[Http], type[WebSocket]]:
    """The classes of a service.

    Args:
        limit: requests and WebSockets at one time; `SPARE` connections more are kept.
        tell: gets the name of the refusal when a connection is ended here.
        direct: binary messages go the short way.
    """
    made = type("Http", (Http,), {"limit": limit + SPARE, "tell": staticmethod(tell)})
    return made, ShortWebSocket if direct else WebSocket


def sweep(connections: Iterable[Any], now: float, tell: Callable[[str], object]) -> None:
    """End the connections that wait for too long. ``now``: of the event loop."""
    for one in list(connections):
        name = one.waits(now)
        if name is not None:
            tell(name)
            one.transport.abort()
