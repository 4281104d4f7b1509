"""uvicorn's WebSocket, with an end to what a peer can keep open or pile up."""

from __future__ import annotations

import logging
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from wmrt.service.direct import DirectWebSocket
from wmrt.service.logs import CONNECTIONS
from wmrt.service.owned import OwnedWebSocket
from wmrt.service.peer import Peer

#: Frames of one message. A message of empty ones never reaches its limit of bytes.
FRAGMENTS = 1024


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


class OwnWebSocket(WebSocket, OwnedWebSocket):
    """A WebSocket that its robot's thread reads."""


#: By `ServeSettings.websocket`.
WAYS: dict[str, type[WebSocket]] = {
    "owned": OwnWebSocket,
    "direct": ShortWebSocket,
    "asgi": WebSocket,
}
