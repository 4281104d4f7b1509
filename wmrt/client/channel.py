"""One WebSocket on a blocking socket, in the caller's thread, every call with a deadline.

The protocol is websockets' own, without its I/O: no thread and no event loop stand between a
robot's loop and the socket.
"""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
import time
from collections import deque
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from wmrt.client.address import Address
from wmrt.core.errors import ServiceError
from wmrt.core.wire import REFUSALS, ROBOT_HEADER

_NAME = re.compile(r"[A-Za-z0-9._-]+")
#: Bytes of one message; the schema comes in the largest.
_MAX = 16 << 20


class Lost(Exception):
    """The connection is gone, or was never had. ``code``: of a close frame, if one came."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class Channel:
    """An open WebSocket.

    Args:
        end: `time.monotonic` seconds until which it has to be open.
        robot: sent as `ROBOT_HEADER`, by which a fleet finds the robot's process.

    Raises:
        Lost: it cannot be had until then. ServiceError: the service refuses, by name.
    """

    def __init__(
        self,
        address: Address,
        token: str | None,
        end: float,
        context: ssl.SSLContext | None,
        robot: str | None = None,
    ) -> None:
        #: `time.monotonic` seconds since when something was sent and nothing heard; None if not.
        self.silent: float | None = None
        self._messages: deque[bytes | str] = deque()
        self._parts: list[bytes] = []
        self._text = False
        self._protocol = ClientProtocol(parse_uri(address.uri), max_size=_MAX)
        try:
            self._socket = address.socket(_left(end), context)
        except OSError as error:
            hint = "; without TLS it is at ws://" if isinstance(error, ssl.SSLError) else ""
            raise Lost(f"{address.text}: {error.strerror or error}{hint}") from None
        try:
            self._shake_hands(token, robot, end)
        except Lost as error:
            self._socket.close()
            hint = "" if address.tls or address.path else "; with TLS it is at wss://"
            raise Lost(f"{error}{hint}", error.code) from None
        except BaseException:
            self._socket.close()
            raise

    def _shake_hands(self, token: str | None, robot: str | None, end: float) -> None:
        request = self._protocol.connect()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        if robot is not None and _NAME.fullmatch(robot):  # the service says no to others
            request.headers[ROBOT_HEADER] = robot
        self._protocol.send_request(request)
        self._flush(end)
        while self._protocol.state is State.CONNECTING:
            self._read(end)
            error = self._protocol.handshake_exc
            if isinstance(error, InvalidStatus):
                raise _refusal(error.response)
            if error is not None:
                raise Lost(f"no WebSocket answers there: {error}")

    def send(self, data: bytes | str, end: float) -> None:
        """Send a message. `Lost` if the connection is, TimeoutError at ``end``."""
        _left(end)  # nothing of it is out yet, so the connection need not end
        try:
            if isinstance(data, str):
                self._protocol.send_text(data.encode())
            else:
                self._protocol.send_binary(data)
        except WebSocketException as error:
            raise self._lost(str(error)) from None
        if self.silent is None:
            self.silent = time.monotonic()
        self._flush(end)

    def receive(self, end: float) -> bytes | str:
        """The next message. `Lost` if the connection is, TimeoutError at ``end``."""
        while not self._messages:
            self._read(end)
        return self._messages.popleft()

    def waiting(self) -> bool:
        """Whether a message can be had without waiting; reads what has come. May raise `Lost`."""
        while not self._messages and select.select([self._socket], [], [], 0)[0]:
            try:
                self._read(time.monotonic() + 0.01)
            except TimeoutError:  # TLS's own talk, or a part of its record
                break
        return bool(self._messages)

    def close(self) -> None:
        """Say good-bye, and close; does not wait for an answer."""
        try:
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                self._flush(time.monotonic() + 0.2)
        except (Lost, TimeoutError):
            pass  # it is gone already
        self._socket.close()

    def drop(self) -> None:
        """Close without a word."""
        self._socket.close()

    def _read(self, end: float) -> None:
        """Take in what comes next; at least one read."""
        try:
            self._socket.settimeout(_left(end))
            data = self._socket.recv(65536)
        except TimeoutError:
            raise
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        self.silent = None
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        try:
            self._flush(end)
        except Lost:  # what it said before it went away is heard all the same
            if not self._messages:
                raise
        if not data or self._protocol.close_rcvd is not None:
            if not self._messages:
                raise self._lost("the other side closed it")

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._text, self._parts = frame.opcode is Opcode.TEXT, []
        self._parts.append(bytes(frame.data))
        if frame.fin:
            whole = b"".join(self._parts)
            self._messages.append(whole.decode(errors="replace") if self._text else whole)

    def _flush(self, end: float) -> None:
        for data in self._protocol.data_to_send():
            try:
                self._socket.settimeout(_left(end))
                if data:
                    self._socket.sendall(data)
                else:
                    self._socket.shutdown(socket.SHUT_WR)
            except TimeoutError:
                # Half a message may be out, so nothing that follows it would be understood.
                raise self._lost("the other side does not read") from None
            except OSError as error:
                raise self._lost(error.strerror or str(error)) from None

    def _lost(self, reason: str) -> Lost:
        close = self._protocol.close_rcvd
        if close is None:
            return Lost(reason)
        return Lost(f"closed with code {close.code} {close.reason}".strip(), close.code)


def _left(end: float) -> float:
    """Seconds until ``end``; TimeoutError if there are none (0 would mean not to block)."""
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _refusal(response: Response) -> ServiceError | Lost:
    """What a service says that does not let in; `Lost` for a proxy that finds no service."""
    status = response.status_code
    try:
        error = json.loads(response.body or b"")["error"]
        name, message = str(error["name"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        if status >= 500:  # services give a reason; a fleet's proxy may just have lost its replica
            return Lost(f"a proxy answers with HTTP {status}")
        name, message = _by_status(status), "no reason given"
    return ServiceError(f"{message} (HTTP {status})", name)


def _by_status(status: int) -> str:
    return next((name for name, value in REFUSALS.items() if value == status), "internal")


def read_object(text: Any) -> dict[str, Any]:
    """A JSON object from a text message; an empty one for anything else."""
    try:
        data = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        data = None
    return data if isinstance(data, dict) else {}
