"""A WebSocket with a short way: a whole binary message goes to its robot in the event loop's own
callback, and an answer to the socket, without a queue, an event or a task in between.

uvicorn's protocol does everything else: handshake, texts, fragments, pings, closing. That is why
frames are looked at here, and no more: whatever is not one whole binary message goes on to it. On a
2-core machine the long way took 104 us from the bytes to the mailbox and 82 us from the answer to
the socket.
"""

from __future__ import annotations

import os
import threading
import weakref
from asyncio import BaseTransport, Transport
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from wmrt.client.frames import WHOLE_BINARY, apply_mask, bounds, head
from wmrt.core.codec import Codec
from wmrt.core.wire import Acted

#: Key of the protocol in a scope's ``extensions``.
EXTENSION = "wmrt.direct"


def framed(data: bytes) -> bytes:
    """A whole binary message as a server sends it."""
    return head(len(data)) + data


def framer(codec: Codec) -> Callable[[Acted], bytes]:
    """What makes an answer a frame."""
    if codec.native is None:
        return lambda answer: framed(codec.pack_acted(answer))
    return codec.answers.frame


def binary(data: bytes, at: int) -> bool:
    """Whether the frame at ``at`` is a whole binary message of a client's."""
    return data[at] == WHOLE_BINARY and data[at + 1] & 0x80 != 0


def unmasked(data: bytes, begin: int, end: int) -> bytes:
    """The payload of a client's frame, see `bounds`."""
    return bytes(apply_mask(data[begin:end], data[begin - 4 : begin]))


class DirectWebSocket(WebSocketsSansIOProtocol):
    """The protocol of one connection.

    `send_now` may be called in any thread: it writes to the socket itself where nothing waits to be
    written, which is the case unless a client reads slowly. The event loop writes under the same
    lock, and tells under it that the socket is about to be closed.

    Attributes:
        take: gets whole binary messages that come when no text waits to be taken, and returns the
            seconds until the next one may come; None: they go the long way, as all else does.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.take: Callable[[bytes], float] | None = None
        self._rest = b""  # of a frame that is not whole
        self._known = True  # where frames begin
        self._parts = self._held = False  # within a message in fragments; the next one has to wait
        self._quick = False  # the last message went the short way
        self._writing = threading.Lock()
        self._file: int | None = None  # of a socket that may be written to directly
        self._owed = b""  # of what was written directly and did not fit

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        # Only asyncio's own are known to write at once or to keep what they could not write.
        if type(transport).__module__ == "asyncio.selector_events":
            if transport.get_extra_info("sslcontext") is None:
                self._file = transport.get_extra_info("socket").fileno()
        self.transport = self.guard(self.transport)  # type: ignore[assignment]

    def guard(self, transport: Transport) -> Guarded:
        """What everybody uses instead of ``transport``."""
        return Guarded(transport, weakref.proxy(self))

    def connection_lost(self, exc: Exception | None) -> None:
        with self._writing:
            self._file = None  # it is closed next, and its number may become another connection's
        super().connection_lost(exc)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["extensions"][EXTENSION] = self  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if not self.handshake_complete:
            self._known = not self.handshake_initiated  # else it sends before it is let in
        if not self.handshake_complete or not self._known:
            super().data_received(data)
            return
        data, self._rest = self._rest + data, b""
        at = 0
        while at < len(data) and not self._held:
            found = bounds(data, at)
            if found is not None and found[1] - found[0] > self.config.ws_max_size:
                self._known = False  # it is refused before it is whole
                super().data_received(data[at:])
                return
            if found is None or found[1] > len(data):
                break
            self._frame(data, at, *found)
            at = found[1]
        self._rest = data[at:]

    def _frame(self, data: bytes, at: int, begin: int, end: int) -> None:
        first = data[at]
        if (
            binary(data, at)
            and self.take is not None
            and not self._parts
            and self.queue.empty()  # nothing overtakes a text
            and not self.close_sent
            and self.conn.state is State.OPEN
        ):
            self._quick = True
            wait = self.take(unmasked(data, begin, end))
            if wait:
                self._hold(wait)
            return
        if not first & 0x08:  # not a control frame, which may come between fragments
            self._parts, self._quick = not first & 0x80, False
        super().data_received(data[at:end])

    def _hold(self, seconds: float) -> None:
        """Read nothing for so long, and the client's sends wait."""
        self._held = True
        self.transport.pause_reading()
        self.loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._held = False
        if not self.transport.is_closing():
            if not self.read_paused:
                self.transport.resume_reading()
            self.data_received(b"")

    def send_now(self, message: bytes) -> bool:
        """Send a frame at once; False if it has to go the long way. Any thread."""
        with self._writing:
            if not self._free():
                return False
            assert self._file is not None
            try:
                sent = os.write(self._file, message)
            except OSError:  # nothing fits, or the client is gone, which the event loop will find
                return False
            if sent < len(message):
                self._owed = message[sent:]
                self.loop.call_soon_threadsafe(self.transport.write, b"")
            return True

    def _free(self) -> bool:
        """Whether a message may be written now, and nothing waits before it."""
        try:
            return (
                self._file is not None
                and not self._owed
                and not self.close_sent
                and self.conn.state is State.OPEN
                and not self.transport.is_closing()
                and self.transport.get_write_buffer_size() == 0
            )
        except RuntimeError:  # the event loop changes the buffer, so there is one
            return False

    def settle(self) -> bytes:
        """What is owed to the client before anything else; the caller sends it, under the lock."""
        owed, self._owed = self._owed, b""
        return owed


class Guarded:
    """A transport whose writes do not get between those of other threads."""

    def __init__(self, transport: Transport, protocol: DirectWebSocket) -> None:
        self._transport, self._protocol = transport, protocol
        # Before every message both are asked, which by way of `__getattr__` took 10 us.
        self.is_closing = transport.is_closing
        self.get_write_buffer_size = transport.get_write_buffer_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        with self._protocol._writing:
            self._transport.write(self._protocol.settle() + data)
