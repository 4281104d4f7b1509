"""A WebSocket whose socket belongs to the thread that steps its robot, while that has nothing to
do: it reads an observation, steps, and writes the answer, and no other thread is woken for that.

Event loop and policy's thread read the same socket, one at a time: a lock is held from reading to
the end of taking in, so whoever reads next goes on where the other one has stopped. What changes is
who is woken. An epoll of its own, which the event loop watches, holds the socket: while the
policy's thread waits for the socket itself, nothing in it wakes the event loop but the connection's
end. While a step runs, the event loop is woken as ever: a newer observation replaces one that
waits, a reset discards what is in work, and a policy that hangs holds nobody up. From just before
its answer on, the thread is about to wait, and the event loop is left alone.

The policy's thread takes whole binary messages that nothing is wrong with. All else is the event
loop's, in the order in which it came.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import weakref
from collections.abc import Callable
from typing import Any

from websockets.protocol import State

from wmrt.client.frames import bounds
from wmrt.core.wire import Observed
from wmrt.service.direct import DirectWebSocket, Guarded, binary
from wmrt.service.doorbell import Doorbell
from wmrt.service.logs import log
from wmrt.service.peer import READ

#: Finds an observation in bytes, from a place on, of at most so many; it, and where it ends.
Framed = Callable[[bytes, int, int], "tuple[Observed, int] | None"]
Fits = Callable[[Observed], bool]


def _no_frame(data: bytes, at: int, most: int) -> tuple[Observed, int] | None:
    return None


def _no_room(seen: Observed) -> bool:
    return False


class OwnedWebSocket(DirectWebSocket):
    """The protocol of one connection. All of it runs in the event loop, but for `send_now` and what
    is said to.

    Until `share` and after `unshare` it is a `DirectWebSocket`, also where the transport is none
    whose socket can be read beside it (TLS, another event loop).
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reading = threading.RLock()  # over all of what follows, and over what is read
        self._gate: select.epoll | None = None  # what wakes the event loop; None: not shared
        self._bell: Doorbell | None = None
        self._reader: Framed = _no_frame
        self._fits: Fits = _no_room
        self._watched = False  # the policy's thread waits for the socket
        self._wakes = False  # what the socket holds wakes the event loop
        self._paused = self._ended = False

    def guard(self, transport: asyncio.Transport) -> Guarded:
        return _Shared(transport, weakref.proxy(self))

    def share(self, reader: Framed, fits: Fits, bell: Doorbell) -> None:
        """Read in the thread that waits at ``bell`` as well.

        Args:
            reader: finds an observation in what is read, see `wmrt.service.messages.Reader.frame`.
            fits: takes it in that thread; False for one that it did not take, which then is the
                event loop's.
        """
        file = self._file
        if file is None or self.transport.is_closing():
            return
        with self._reading:
            self._paused = self.read_paused or self._held
            self.transport.pause_reading()  # asyncio's own
            self._gate = select.epoll()
            self._gate.register(file, select.EPOLLIN)
            self._reader, self._fits, self._bell, self._wakes = reader, fits, bell, True
            if not self._paused:
                self.loop.add_reader(self._gate.fileno(), self._readable)
        bell.attach(self)

    def unshare(self) -> None:
        """Leave reading to asyncio again. It is what finds the connection's end."""
        with self._reading:
            gate, bell, self._gate, self._bell = self._gate, self._bell, None, None
            if gate is None or bell is None:
                return
            self.loop.remove_reader(gate.fileno())
            gate.close()
            self._reader, self._fits = _no_frame, _no_room
            if not self._paused and not self.transport.is_closing():
                self.transport.resume_reading()
        bell.detach(self)  # while it waits for the socket, closing that ends nothing

    def connection_lost(self, exc: Exception | None) -> None:
        self.unshare()
        super().connection_lost(exc)

    def pause(self, pausing: bool) -> bool:
        """Read nothing for now, or go on; False where asyncio reads."""
        with self._reading:
            if self._gate is None:
                return False
            if pausing is not self._paused:
                self._paused = pausing
                if pausing:
                    self.loop.remove_reader(self._gate.fileno())
                else:
                    self.loop.add_reader(self._gate.fileno(), self._readable)
            return True

    def data_received(self, data: bytes) -> None:
        with self._reading:
            super().data_received(data)

    def _readable(self) -> None:
        """Read in the event loop."""
        with self._reading:
            if self._gate is None or self._paused:
                return
            if self._file is None or self.transport.is_closing():
                self.unshare()
                return
            try:
                data = os.read(self._file, READ)
            except BlockingIOError:  # the policy's thread was here first
                return
            except OSError:
                data = b""
            if data:
                self._receive(data)
            else:
                self.unshare()

    def _receive(self, data: bytes) -> None:
        try:
            self.data_received(data)
        except BaseException:  # asyncio does the same: what follows would not be understood
            self.transport.abort()
            raise

    def _go_on_reading(self) -> None:
        """With what the policy's thread has left."""
        with self._reading:
            if not self.transport.is_closing() and not self._held:
                self._receive(b"")
            bell = self._bell if self._free_to_take() else None
        if bell is not None:
            bell.ring()  # it may go on waiting for the socket

    # In the policy's thread

    def watch(self) -> int:
        with self._reading:
            if self._gate is None or self._file is None:
                return -1
            self._watched = self._free_to_take()
            self._wake_loop(not self._watched)
            return self._file if self._watched else -1

    def unwatch(self) -> None:
        with self._reading:
            self._watched = False
            self._wake_loop(True)

    def send_now(self, message: bytes) -> bool:
        """See `DirectWebSocket.send_now`. A client that answers at once is quicker than this thread
        is back at the socket: in a loop without a pause two of three observations woke the event
        loop, which had to wake this thread. So from here on it is not woken; see `Doorbell.busy`.
        """
        bell = self._bell
        if bell is not None and bell.mine() and self._reading.acquire(False):
            try:
                self._wake_loop(False)
            finally:
                self._reading.release()
        return super().send_now(message)

    def take_in(self) -> None:
        with self._reading:
            try:
                if self._watched and self._free_to_take():
                    self._read()
            except Exception:  # a fault of ours must not end the thread that steps the robot
                log.exception("a message could not be taken in by its robot's thread")
                self.loop.call_soon_threadsafe(self.transport.abort)
            self.unwatch()

    def _free_to_take(self) -> bool:
        """Whether the next bytes begin a message, and nothing comes before it."""
        return (
            self._gate is not None
            and self._file is not None
            and self._quick
            and self._known
            and not self._rest
            and not self._parts
            and not self._held
            and not self._paused
            and not self._ended
            and self.take is not None
            and self.queue.empty()
            and not self.close_sent
            and self.conn.state is State.OPEN
            and not self.transport.is_closing()
        )

    def _read(self) -> None:
        assert self._file is not None  # `_free_to_take` says so
        try:
            data = os.read(self._file, READ)
        except BlockingIOError:  # the event loop was here first
            return
        except OSError:  # the event loop finds it too
            data = b""
        self._ended = not data
        at = 0
        while at < len(data):
            taken = self._reader(data, at, self.config.ws_max_size)
            if taken is None or not self._fits(taken[0]):
                break
            at = taken[1]
        self._rest = data[at:]
        if at < len(data) and not self._unfinished(data, at):
            self.loop.call_soon_threadsafe(self._go_on_reading)

    def _unfinished(self, data: bytes, at: int) -> bool:
        """Whether a binary message begins at ``at`` whose end is still to come."""
        found = bounds(data, at)
        if found is None:
            return True
        begin, end = found
        return end > len(data) and binary(data, at) and end - begin <= self.config.ws_max_size

    def _wake_loop(self, wakes: bool) -> None:
        if wakes is not self._wakes and self._gate is not None and self._file is not None:
            self._wakes = wakes
            self._gate.modify(self._file, select.EPOLLIN if wakes else 0)


class _Shared(Guarded):
    """Pauses whoever reads."""

    _protocol: OwnedWebSocket

    def pause_reading(self) -> None:
        if not self._protocol.pause(True):
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._protocol.pause(False):
            self._transport.resume_reading()
