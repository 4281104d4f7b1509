"""Accepts connections: a few at a time, and those that are to be refused at the door never get a
transport, a protocol or a task.

asyncio accepts all that wait in one turn of the event loop, which a burst of clients too many then
keeps, and with it Python's interpreter lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
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
        for _ in range(AT_ONCE):
            try:
                own, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                log.error("a connection cannot be accepted", reason=error.strerror)
                self._loop.remove_reader(listening)
                self._loop.call_later(RETRY, self._resume, listening)
                return
            own.setblocking(False)
            if self._admission is None or not self._admission.closed():
                self._admit(own)
            else:
                self._look(self._admission, own, peer)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:  # it has not been stopped
            self._loop.add_reader(listening, self._accept, listening)

    def _look(self, admission: Admission, own: socket.socket, peer: Any) -> None:
        """By its request's head: refuse it, or let it go the ordinary way; or wait for the head."""
        try:
            head = own.recv(LOOK, socket.MSG_PEEK)
        except BlockingIOError:
            if self._room() > len(self._waiting):
                self._waiting[own] = (peer, self._loop.time())
                self._loop.add_reader(own, self._look_again, admission, own)
            else:
                self._admit(own)
            return
        except OSError:
            own.close()
            return
        answer = admission.refusal(head, peer)
        if answer is None:
            self._admit(own)
            return
        with own, contextlib.suppress(OSError):  # it is gone, and needs no answer
            own.recv(LOOK)  # what is left unread makes a reset of the connection's end
            own.send(answer)

    def _look_again(self, admission: Admission, own: socket.socket) -> None:
        peer, _ = self._leave(own)
        self._look(admission, own, peer)

    def _leave(self, own: socket.socket) -> tuple[Any, float]:
        self._loop.remove_reader(own)
        return self._waiting.pop(own)

    def _admit(self, own: socket.socket) -> None:
        task = asyncio.ensure_future(self._connect(own))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
