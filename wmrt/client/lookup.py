"""Finding and reaching a host by a deadline."""

from __future__ import annotations

import queue
import socket
import threading

from wmrt.client.line import left

#: Of `socket.getaddrinfo`: family and address.
Place = tuple[int, tuple[object, ...]]


class Lookup:
    """Addresses of a host. A name server may take longer than any step, and the call that asks it
    has no timeout: a name is asked for in a thread, and a later call waits for the same answer."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._coming: queue.SimpleQueue[list[Place] | OSError] | None = None

    def places(self, end: float) -> list[Place]:
        """Where the host is, the likeliest first.

        Raises:
            TimeoutError: not known until ``end``, `time.monotonic` seconds. OSError: no such host.
        """
        try:
            return self._ask(socket.AI_NUMERICHOST)
        except socket.gaierror:  # it is a name
            pass
        if self._coming is None:
            self._coming = queue.SimpleQueue()
            threading.Thread(
                target=self._find, args=(self._coming,), name="wmrt-lookup", daemon=True
            ).start()
        try:
            found = self._coming.get(timeout=left(end))
        except queue.Empty:
            raise TimeoutError(f"the address of {self._host} is not known in time") from None
        self._coming = None
        if isinstance(found, OSError):
            raise found
        return found

    def _find(self, coming: queue.SimpleQueue[list[Place] | OSError]) -> None:
        try:
            coming.put(self._ask(0))
        except OSError as error:
            coming.put(error)

    def _ask(self, flags: int) -> list[Place]:
        found = socket.getaddrinfo(self._host, self._port, 0, socket.SOCK_STREAM, 0, flags)
        return [(family, place) for family, _, _, _, place in found]

    def connected(self, end: float) -> socket.socket:
        """A socket connected to the first place that answers, each has its share of the time.

        Raises:
            TimeoutError, OSError: as `places`, or what the last place that was tried says.
        """
        places, refused = self.places(end), OSError("no address")
        for number, (family, place) in enumerate(places):
            own = socket.socket(family, socket.SOCK_STREAM)
            try:
                own.settimeout(left(end) / (len(places) - number))
                own.connect(place)
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                own.close()
                refused = error
            except BaseException:
                own.close()
                raise
            else:
                return own
        raise refused
