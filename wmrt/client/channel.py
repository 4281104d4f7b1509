"""One WebSocket on a blocking socket, in the caller's thread, every call with a deadline.

The protocol is websockets' own, without its I/O: no thread and no event loop stand between a
robot's loop and the socket.
"""

from __future__ import annotations

import json
import re
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
from wmrt.client.frames import bounds, is_plain, masked
from wmrt.client.line import Line, left, out_of_time
from wmrt.core.codec import codec
from wmrt.core.errors import ServiceError
from wmrt.core.wire import REFUSALS, ROBOT_HEADER, Acted

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
        spin: seconds, see `wmrt.client.Client`.

    Raises:
        Lost: it cannot be had. TimeoutError: nor can it be told why, until then. ServiceError: the
            service refuses, by name.
    """

    def __init__(
        self,
        address: Address,
        token: str | None,
        end: float,
        context: ssl.SSLContext | None,
        robot: str | None = None,
        spin: float = 0.0,
    ) -> None:
        #: `time.monotonic` seconds since when something was sent and nothing heard; None if not.
        self.silent: float | None = None
        self._messages: deque[bytes | str] = deque()
        self._parts: list[bytes] = []
        self._text = self._within = False  # of a message in fragments
        self._rest = b""  # of a frame that is not whole
        self._known = False  # where frames begin
        native = codec().native
        self._receive = None if native is None else codec().answers.receive
        self._masked = masked if native is None else native.masked
        self._payload = None if native is None else native.payload
        self._protocol = ClientProtocol(parse_uri(address.uri), max_size=_MAX)
        try:
            self._line = Line(address.socket(end, context), spin)
        except OSError as error:
            if out_of_time(error):
                raise
            hint = "; without TLS it is at ws://" if isinstance(error, ssl.SSLError) else ""
            raise Lost(f"{address.text}: {error.strerror or error}{hint}") from None
        try:
            self._shake_hands(token, robot, end)
        except Lost as error:
            self._line.close()
            hint = "" if address.tls or address.path else "; with TLS it is at wss://"
            raise Lost(f"{error}{hint}", error.code) from None
        except BaseException:
            self._line.close()
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
        left(end)  # nothing of it is out yet, so the connection need not end
        short = type(data) is bytes and self._protocol.state is State.OPEN
        if not short:
            try:
                if isinstance(data, str):
                    self._protocol.send_text(data.encode())
                else:
                    self._protocol.send_binary(data)
            except WebSocketException as error:
                raise self._lost(str(error)) from None
        if self.silent is None:
            self.silent = time.monotonic()
        if short:  # nothing waits in the protocol: it is emptied whenever something is put there
            self._write(self._masked(data), end)  # type: ignore[arg-type]
        else:
            self._flush(end)

    def receive(self, end: float) -> bytes | str:
        """The next message. `Lost` if the connection is, TimeoutError at ``end``."""
        while not self._messages:
            self._read(end)
        return self._messages.popleft()

    def answer(self, end: float) -> Acted | bytes | str:
        """`receive`; an answer that comes alone and whole is one already: 4 us less of a step."""
        while not self._messages:
            file = self._line.file
            if self._receive is None or file is None or not self._free():
                self._read(end)
                continue
            wait = int(left(end) * 1e3) + 1
            try:
                heard = self._receive(file, wait)
            except OSError as error:
                raise self._lost(error.strerror or str(error)) from None
            if isinstance(heard, Acted):
                self.silent = None
                return heard
            if heard is not None:
                self._take_in(heard, end)
        return self._messages.popleft()

    def waiting(self) -> bool:
        """Whether a message can be had without waiting; reads what has come. May raise `Lost`."""
        while not self._messages and self._line.readable():
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
        self._line.close()

    def drop(self) -> None:
        """Close without a word."""
        self._line.close()

    def _read(self, end: float) -> None:
        """Take in what comes next; at least one read."""
        try:
            data = self._line.read(end)
        except OSError as error:
            if out_of_time(error):
                raise
            raise self._lost(error.strerror or str(error)) from None
        self._take_in(data, end)

    def _take_in(self, data: bytes, end: float) -> None:
        self.silent = None
        if data and self._known:
            if self._frames(data):
                return  # nothing but whole messages: the protocol has heard of nothing
        else:
            self._parse(self._rest + data)
            self._rest = b""
            if not data:
                self._protocol.receive_eof()
        try:
            self._flush(end)
        except Lost:  # what it said before it went away is heard all the same
            if not self._messages:
                raise
        if not data or self._protocol.close_rcvd is not None:
            if not self._messages:
                raise self._lost("the other side closed it")

    def _frames(self, data: bytes) -> bool:
        """Take in frames; whole binary messages go the short way. True if all of them did."""
        if self._payload is not None and self._free():  # an answer is one frame, in one piece
            whole = self._payload(data)
            if whole is not None:
                self._messages.append(whole)
                return True
        data, at, short = self._rest + data, 0, True
        while (found := bounds(data, at)) is not None:
            begin, end = found
            if end - begin > _MAX:  # it is refused before it is whole
                self._known, end, short = False, len(data), False
                self._parse(data[at:])
            elif end > len(data):
                break
            elif is_plain(data, at) and not self._within and self._protocol.state is State.OPEN:
                self._messages.append(data[begin:end])
            else:
                self._parse(data[at:end])
                short = False
            at = end
        self._rest = data[at:]
        return short

    def _free(self) -> bool:
        """Whether the next bytes begin a message."""
        whole = self._known and not self._rest and not self._within
        return whole and self._protocol.state is State.OPEN

    def _parse(self, data: bytes) -> None:
        """Give bytes to the protocol, and take what it makes of them."""
        opening = self._protocol.state is State.CONNECTING
        if data:
            self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        if opening and self._protocol.state is State.OPEN:
            self._known = data.endswith(b"\r\n\r\n")  # else a frame may have begun

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return
        if frame.opcode is not Opcode.CONT:
            self._text, self._parts = frame.opcode is Opcode.TEXT, []
        self._parts.append(bytes(frame.data))
        self._within = not frame.fin
        if frame.fin:
            whole = b"".join(self._parts)
            self._messages.append(whole.decode(errors="replace") if self._text else whole)

    def _flush(self, end: float) -> None:
        for data in self._protocol.data_to_send():
            self._write(data, end)

    def _write(self, data: bytes, end: float) -> None:
        try:
            if data:
                self._line.write(data, end)
            else:
                self._line.end()
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


def _refusal(response: Response) -> ServiceError | Lost:
    """What a service says that does not let in; `Lost` for a proxy that finds no service."""
    status = response.status_code
    try:
        error = json.loads(response.body or b"")["error"]
        name, message = str(error["name"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        if status >= 500:  # services give a reason; a fleet's proxy may just have lost its replica
            return Lost(f"a proxy answers with HTTP {status}")
        name = next((name for name, value in REFUSALS.items() if value == status), "internal")
        message = "no reason given"
    return ServiceError(f"{message} (HTTP {status})", name)


def read_object(text: Any) -> dict[str, Any]:
    """A JSON object from a text message; an empty one for anything else."""
    try:
        data = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        data = None
    return data if isinstance(data, dict) else {}
