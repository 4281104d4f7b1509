"""A connected socket whose every call ends by a deadline."""

from __future__ import annotations

import select
import socket
import ssl
import time

from wmrt.client.spinning import received

#: Bytes of one read: an answer has a few hundred.
_READ = 16384
#: Seconds of one wait: `poll` takes 2^31 ms at most, and who is to wait longer waits again.
LONGEST = 1e6


class Line:
    """Bytes there and back.

    A plain socket never blocks, and is waited for where it has to be: with a timeout of its own,
    which each deadline would change, a read or write is three system calls instead of one or two.

    Args:
        own: a connected socket, plain or TLS. It is closed with this.
        spin: seconds for which a read looks again and again before the thread sleeps.

    Attributes:
        file: descriptor of a plain socket that is not looked at again and again; else None.
    """

    def __init__(self, own: socket.socket, spin: float = 0.0) -> None:
        self._own, self._spin = own, spin
        self._plain = not isinstance(own, ssl.SSLSocket)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(own, select.POLLIN)
        self._writable.register(own, select.POLLOUT)
        self.file = own.fileno() if self._plain and not spin else None
        if self._plain:
            own.setblocking(False)

    def read(self, end: float) -> bytes:
        """What comes next; nothing at the end of the stream.

        Args:
            end: `time.monotonic` seconds.

        Raises:
            TimeoutError: nothing came until ``end``. OSError: the connection is gone.
        """
        if self._spin:
            data = received(self._own, _READ, min(self._spin, left(end)))
            if data is not None:
                return data
        if not self._plain:
            self._own.settimeout(left(end))
            return self._own.recv(_READ)
        while True:
            if self._readable.poll(left(end) * 1e3):
                try:
                    return self._own.recv(_READ)
                except BlockingIOError:  # it only looked as if
                    continue

    def write(self, data: bytes, end: float) -> None:
        """Send all of ``data``. TimeoutError at ``end``, when a part of it may be out; OSError."""
        if not self._plain:
            self._own.settimeout(left(end))
            self._own.sendall(data)
            return
        rest: bytes | memoryview = data
        while True:
            try:
                sent = self._own.send(rest)
            except BlockingIOError:
                sent = 0
            if sent == len(rest):
                return
            rest = memoryview(rest)[sent:]
            self._writable.poll(left(end) * 1e3)

    def readable(self) -> bool:
        """Whether something can be read at once."""
        return bool(self._readable.poll(0))

    def end(self) -> None:
        """There is nothing more to write."""
        self._own.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.file = None  # its number may become another's
        self._own.close()


def out_of_time(error: OSError) -> bool:
    """Whether it is the deadline; with a number it is the peer, which acknowledges nothing."""
    return isinstance(error, TimeoutError) and error.errno is None


def left(end: float) -> float:
    """Seconds until ``end``, or `LONGEST`; TimeoutError if there are none (0 would mean not to
    block)."""
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return min(seconds, LONGEST)
