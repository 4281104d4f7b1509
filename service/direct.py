"""A WebSocket with a short way: a whole binary message goes to its robot in the event loop's own
callback, and an answer to the socket, without a queue, an event or a task in between.

uvicorn's protocol does everything else: handshake, texts, fragments, pings, closing. That is why
frames are looked at here, and no more: whatever is not one whole binary message goes on to it. On a
2-core machine the long way took 104 us from the bytes to the mailbox and 82 us from the answer to
the socket.
"""

from __future__ import annotations

import os
import struct
import threading
import weakref
from asyncio import BaseTransport, Transport
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

if TYPE_CHECKING:
    from websockets.utils import apply_mask
else:
    try:
        from websockets.speedups import apply_mask
    except ImportError:  # built without its C part
        from websockets.utils import apply_mask

#: Key of the protocol in a scope's ``extensions``.
EXTENSION = "wmrt.direct"
_WHOLE_BINARY = 0x82
_SHORT, _MIDDLE, _LONG = struct.Struct("!BB"), struct.Struct("!BBH"), struct.Struct("!BBQ")


def bounds(data: bytes, at: int) -> tuple[int, int] | None:
    """Where the payload of the frame at ``at`` begins and ends; None if its head is not whole."""
    if len(data) < at + 2:
        return None
    second = data[at + 1]
    size, begin = second & 0x7F, at + 2
    if size >= 126:
        form = _MIDDLE if size == 126 else _LONG
        begin = at + form.size
        if len(data) < begin:
            return None
        size = form.unpack_from(data, at)[2]
    begin += 4 * (second >> 7)
    return begin, begin + size


def framed(data: bytes) -> bytes:
    """A whole binary message as a server sends it."""
    size = len(data)
    if size < 126:
        return _SHORT.pack(_WHOLE_BINARY, size) + data
    if size < 1 << 16:
        return _MIDDLE.pack(_WHOLE_BINARY, 126, size) + data
    return _LONG.pack(_WHOLE_BINARY, 127, size) + data


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
        self._writing = threading.Lock()
        self._file: int | None = None  # of a socket that may be written to directly
        self._owed = b""  # of what was written directly and did not fit

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        # Only asyncio's own are known to write at once or to keep what they could not write.
        if type(transport).__module__ == "asyncio.selector_events":
            if transport.get_extra_info("sslcontext") is None:
                self._file = transport.get_extra_info("socket").fileno()
        self.transport = _Guarded(self.transport, weakref.proxy(self))  # type: ignore[assignment]

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
            first == _WHOLE_BINARY
            and data[at + 1] & 0x80
            and self.take is not None
            and not self._parts
            and self.queue.empty()  # nothing overtakes a text
            and not self.close_sent
            and self.conn.state is State.OPEN
        ):
            wait = self.take(bytes(apply_mask(data[begin:end], data[begin - 4 : begin])))
            if wait:
                self._hold(wait)
            return
        if not first & 0x08:  # not a control frame, which may come between fragments
            self._parts = not first & 0x80
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

    def send_now(self, data: bytes) -> bool:
        """Send a binary message at once; False if it has to go the long way. Any thread."""
        message = framed(data)
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


class _Guarded:
    """A transport whose writes do not get between those of other threads."""

    def __init__(self, transport: Transport, protocol: DirectWebSocket) -> None:
        self._transport, self._protocol = transport, protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        with self._protocol._writing:
            self._transport.write(self._protocol.settle() + data)
