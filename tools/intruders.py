"""Clients for whom there is no place: many, in one thread, as cheap as Python has them, and how
long each waits; and a decoy, which refuses in the same bytes and is not the service.

Whatever runs beside the robots takes processors from them, at whose door it may knock. What
knocking at the decoy changes is the harness's doing; what knocking at the service changes beyond
that is the service's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tools.wire import CLOSE, TEXT, frame, frames_of, handshake
from wmrt.core.wire import ROBOT_HEADER

#: Seconds after which a try that nobody answers is given up.
GIVEN_UP = 10.0
_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_BYE = frame(CLOSE, (1000).to_bytes(2, "big"))
_MOST = 1 << 16


class Try(NamedTuple):
    """A client knocks: when (`time.monotonic` seconds), at which port of this host, and of which
    group it is."""

    due: float
    port: int
    group: int


class Heard(NamedTuple):
    """What became of a try.

    Attributes:
        said: the refusal's name, ``served``, or what went wrong.
        ms: from its first system call to the refusal.
        lag_ms: how late that call was, which is the harness's doing.
    """

    group: int
    said: str
    ms: float
    lag_ms: float


class Words(NamedTuple):
    """What a client says: the request that opens a WebSocket, then the message that opens a
    session."""

    request: bytes
    message: bytes


def words(robot: str, named: bool = True) -> Words:
    """Those of a client for ``robot``, masked beforehand.

    Args:
        named: the request names the robot in a header, as `wmrt.client` does.
    """
    headers = (f"{ROBOT_HEADER}: {robot}",) if named else ()
    wanted = {"kind": "open", "version": 1, "robot": robot}
    message = frame(TEXT, json.dumps(wanted).encode())
    return Words(handshake("/v1/stream", *headers), message)


class Knock:
    """One try, on a socket that never blocks.

    Attributes:
        heard: all that came. said: see `Heard`; empty for as long as nothing was.
    """

    def __init__(self, port: int, said: Words) -> None:
        self.own = socket.socket()
        self.own.setblocking(False)
        self._words, self._waits, self._inside = said, True, False
        self.heard, self.said = b"", ""
        self.own.connect_ex(("127.0.0.1", port))

    def go_on(self) -> bool:
        """Say or hear what can be; True once it is over."""
        try:
            if self._waits:
                self.own.send(self._words.request)
                self._waits = False
            part = self.own.recv(_MOST)
            self.heard += part
            over = self._hear() or not part
        except BlockingIOError:
            return False
        except OSError as error:
            self.said, over = self.said or type(error).__name__, True
        if over:
            self.said = self.said or "closed without a word"
            self.own.close()
        return over

    @property
    def waits(self) -> int:
        """For what, as epoll names it."""
        return select.EPOLLOUT if self._waits else select.EPOLLIN

    def _hear(self) -> bool:
        head, end, body = self.heard.partition(_END)
        if not end:
            return False
        if not head.startswith(b"HTTP/1.1 101"):
            length = _LENGTH.search(head)
            if length is not None and len(body) < int(length[1]):
                return False
            self.said = _name(body) or head.split(b"\r\n")[0].decode("latin-1")
            return True
        if not self._inside:
            self._inside = True
            self.own.send(self._words.message)
        for opcode, payload in frames_of(body):
            if opcode == TEXT and not self.said:
                self.said = _name(payload) or "served"
            if opcode == CLOSE:
                self.own.send(_BYE)
                return True
        return self.said == "served"


def _name(body: bytes) -> str | None:
    """A refusal's; None for what is none."""
    try:
        return str(json.loads(body)["error"]["name"])
    except (ValueError, KeyError, TypeError):
        return None


def knock(port: int, said: Words) -> tuple[str, bytes, float]:
    """One try alone: what is said, all that came, and after how many milliseconds."""
    began = time.monotonic()
    one, poll = Knock(port, said), select.poll()
    while not one.go_on():
        poll.register(one.own, one.waits)
        if not poll.poll(max(0.0, 1e3 * (began + GIVEN_UP - time.monotonic()))):
            one.own.close()
            return "TimeoutError", one.heard, 1e3 * GIVEN_UP
    return one.said, one.heard, 1e3 * (time.monotonic() - began)


class Intruders:
    """Clients that knock as told, in one loop.

    Args:
        clients: how many different ones. named: see `words`.
    """

    def __init__(self, clients: int, named: bool = True) -> None:
        self._words = [words(f"one-too-many-{number}", named) for number in range(clients)]
        self._poll = select.epoll()
        self._under_way: dict[int, tuple[Knock, Try, float]] = {}
        self._count = 0
        self.heard: list[Heard] = []

    def run(self, tries: Iterable[Try]) -> list[Heard]:
        """Knock, the clients in turn, and hear what is said.

        Args:
            tries: in the order of their times.
        """
        waiting = list(tries)[::-1]
        while waiting or self._under_way:
            pause = GIVEN_UP
            if waiting:
                pause = waiting[-1].due - time.monotonic()
                if pause <= 0:
                    self._begin(waiting.pop())
            self._go_on(max(0.0, pause))
        self._poll.close()
        return self.heard

    def _begin(self, asked: Try) -> None:
        began = time.monotonic()
        one = Knock(asked.port, self._words[self._count % len(self._words)])
        self._count += 1
        file = one.own.fileno()
        self._under_way[file] = (one, asked, began)
        if one.go_on():
            self._end(file)
        else:
            self._poll.register(file, one.waits)

    def _go_on(self, pause: float) -> None:
        for file, _ in self._poll.poll(pause):
            one = self._under_way[file][0]
            before = one.waits
            if one.go_on():
                self._end(file)
            elif one.waits != before:
                self._poll.modify(file, one.waits)
        oldest = next(iter(self._under_way), None)
        if oldest is not None and time.monotonic() - self._under_way[oldest][2] > GIVEN_UP:
            self._end(oldest)

    def _end(self, file: int) -> None:
        one, asked, began = self._under_way.pop(file)
        one.own.close()
        ms, lag = 1e3 * (time.monotonic() - began), 1e3 * (began - asked.due)
        self.heard.append(Heard(asked.group, one.said or "TimeoutError", ms, lag))


def decoy(answers: Sequence[bytes], said: Callable[[int], object]) -> None:
    """Serve ``answers`` on a port of its own until its process ends: one for the request, one for
    each thing that is said after it, and the connection's end after the last.

    Args:
        said: is called with the port.
    """
    own = socket.create_server(("127.0.0.1", 0), backlog=512)
    own.setblocking(False)
    poll = select.epoll()
    poll.register(own, select.EPOLLIN)
    said(own.getsockname()[1])
    open_: dict[int, tuple[socket.socket, int]] = {}
    while True:
        for file, _ in poll.poll():
            if file == own.fileno():
                with contextlib.suppress(BlockingIOError):
                    peer, _ = own.accept()
                    peer.setblocking(False)
                    open_[peer.fileno()] = (peer, 0)
                    poll.register(peer, select.EPOLLIN)
                continue
            peer, heard = open_[file]
            with contextlib.suppress(OSError):
                if peer.recv(_MOST) and heard < len(answers):
                    peer.send(answers[heard])
                    if (heard := heard + 1) < len(answers):
                        open_[file] = (peer, heard)
                        continue
            del open_[file]
            peer.close()


def humble() -> str:
    """Run when nobody else wants the processor: what was had."""
    os.nice(19)
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (OSError, AttributeError) as error:
        return f"nice 19 ({error})"
    return "nice 19, SCHED_IDLE"
