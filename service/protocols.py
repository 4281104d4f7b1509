"""uvicorn's HTTP, with an end to what a peer can keep open or pile up.

uvicorn counts requests. A connection that sends none, half a header line now and then, or that
reads no answer was kept for ever: nothing bounded how many, nor what was written to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from wmrt.service.logs import CONNECTIONS
from wmrt.service.peer import Peer
from wmrt.service.peer_websocket import WAYS, WebSocket

#: Seconds for a request's head, from the connection or the first byte after the last answer.
HEAD = 10.0
#: Bytes that are parsed at a time. h11 looks for the end of a head before it looks at its size: one
#: of 20 000 lines, in one piece, kept the event loop for 0.8 s on a busy machine.
PIECE = 16384
#: The same, of a parser that goes on to the next request before the last one is answered: so many
#: fit into a piece.
SMALL_PIECE = 2048
#: Bytes of a head, or of what stands between the parts of a body.
HEAD_BYTES = 16384
#: TCP connections beyond the limit of requests and WebSockets: probes, and clients that are told.
SPARE = 64
_INVALID = "Invalid HTTP request received."  # as uvicorn says it
_FULL = (
    b'{"kind":"refused","version":1,"error":{"name":"too_many_connections",'
    b'"message":"all connections are in use"},"sequence":null}'
)
_REFUSED = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n"
_REFUSED += b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_FULL), _FULL)


class Http(Peer, asyncio.Protocol):
    """A connection on which requests come; the parser is the next class's.

    Attributes:
        app_state: what applications find in their scope's ``state``; ``transport`` among it.
        idle: since when a request's head is waited for; None while one is answered.
    """

    #: Connections at one time, and what gets the names of refusals. `protocols` sets them.
    limit = 0
    tell: Callable[[str], object]
    idle: float | None
    connections: set[Any]
    app_state: dict[str, Any]
    cycle: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = logging.getLogger(CONNECTIONS)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}
        self.idle = self.loop.time()
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
        self._parse(data)
        if not self._waits_for_a_request():
            self.idle = None
        elif not waited or self.idle is None:
            self.idle = self.loop.time()

    def _parse(self, data: bytes) -> None:
        for at in range(0, len(data), PIECE):
            super().data_received(data[at : at + PIECE])
            if self._ended():
                break

    def _ended(self) -> bool:
        """Whether nothing more is to be parsed here."""
        return self.transport.is_closing() or self.transport.get_protocol() is not self

    def _waits_for_a_request(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def on_response_complete(self) -> None:
        super().on_response_complete()  # type: ignore[misc]
        # The next one may have come with the last one.
        self.idle = self.loop.time() if self._waits_for_a_request() else None

    def waits(self, now: float) -> str | None:
        if self.idle is not None and now - self.idle > HEAD:
            return "too_slow"
        return super().waits(now)


class H11Http(Http, H11Protocol):
    """Requests are parsed in Python."""


class FastHttp(Http, HttpToolsProtocol):
    """Requests are parsed in C, by a parser that has no limits of its own: neither on what a head
    may be, nor on what follows a body, nor on requests that come before the last one is answered.
    A step over HTTP kept the event loop for 0.8 to 0.95 ms, with h11 for 1.3 ms.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held = b""  # waits for the answers to the requests before it
        self._silent = 0  # bytes since the last event
        self._within = self._foreign = False  # a head; that of an upgrade to another protocol

    def _parse(self, data: bytes) -> None:
        self._held += data
        while self._held and not self.pipeline and not self._ended():
            piece, self._held = self._held[:SMALL_PIECE], self._held[SMALL_PIECE:]
            self._silent += len(piece)
            self._feed(piece)
            if self._silent > HEAD_BYTES and not self._ended():
                self.send_400_response(_INVALID)
        if self._held:
            self.flow.pause_reading()

    def _feed(self, piece: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserError:
            self.logger.warning(_INVALID)
            self.send_400_response(_INVALID)
        except httptools.HttpParserUpgrade as upgrade:
            if self._foreign:  # the parser has left the body alone
                self.parser = httptools.HttpRequestParser(self)
                self._feed(self._plain_head() + piece[upgrade.args[0] :])
            else:
                self.handle_websocket_upgrade()
                self.parser = None  # type: ignore[assignment]  # it holds this, which is over

    def _plain_head(self) -> bytes:
        """The head without what it offers: uvicorn's own protocol would drop the body."""
        version = self.scope["http_version"].encode()
        lines = [b" ".join((self.scope["method"].encode(), self.url, b"HTTP/" + version))]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        self._within, self._foreign = True, False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._within:  # not after a body: the application has its headers
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._silent, self._within = 0, False
        self._foreign = self.parser.should_upgrade() and not self._should_upgrade()
        if self._foreign:
            self.scope["method"] = self.parser.get_method().decode()
            self.scope["http_version"] = self.parser.get_http_version()
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._silent = 0
        if not self._foreign:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._held:
            self.data_received(b"")


def protocols(
    limit: int, tell: Callable[[str], object], way: str, fast: bool
) -> tuple[type[Http], type[WebSocket]]:
    """The classes of a service.

    Args:
        limit: requests and WebSockets at one time; `SPARE` connections more are kept.
        tell: gets the name of the refusal when a connection is ended here.
        way: of binary messages, see `ServeSettings.websocket`. fast: requests are parsed in C.
    """
    kind: type[Http] = FastHttp if fast else H11Http
    made = type("Http", (kind,), {"limit": limit + SPARE, "tell": staticmethod(tell)})
    return made, WAYS[way]
