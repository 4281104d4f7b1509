"""Bytes of HTTP and of WebSocket frames as nobody should send them."""

from __future__ import annotations

import os
import socket
import struct
import time

TEXT, BINARY, CONT, CLOSE, PING = 1, 2, 0, 8, 9


def frame(
    opcode: int,
    data: bytes = b"",
    *,
    fin: bool = True,
    rsv: int = 0,
    mask: bool = True,
    length: int | None = None,
) -> bytes:
    """A frame. ``length`` is the one that it says it has; a client's frames are masked."""
    size = len(data) if length is None else length
    head = bytes([fin << 7 | rsv << 4 | opcode])
    bit = mask << 7
    if size < 126:
        head += bytes([bit | size])
    elif size < 65536:
        head += bytes([bit | 126]) + struct.pack("!H", size)
    else:
        head += bytes([bit | 127]) + struct.pack("!Q", size)
    if not mask:
        return head + data
    key = os.urandom(4)
    whole = (key * (len(data) // 4 + 1))[: len(data)]
    mixed = int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")
    return head + key + mixed.to_bytes(len(data), "big")


def handshake(path: str = "/v1/stream", *headers: str, host: str = "localhost") -> bytes:
    """The request that opens a WebSocket."""
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    """A request of HTTP/1.1 with its length."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def dial(port: int, seconds: float = 10.0) -> socket.socket:
    """A TCP connection to this host."""
    return socket.create_connection(("127.0.0.1", port), seconds)


def heard(own: socket.socket, seconds: float) -> str:
    """What comes until the other side closes, or ``seconds`` have passed."""
    parts, end = list[bytes](), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        own.settimeout(left)
        try:
            part = own.recv(65536)
        except (TimeoutError, OSError):
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode("latin-1")


def http_request(port: int, data: bytes, seconds: float = 10.0) -> str:
    """Send bytes on a connection of their own; what comes back."""
    with dial(port) as own:
        own.sendall(data)
        return heard(own, seconds)


def frames_of(data: bytes) -> list[tuple[int, bytes]]:
    """Opcode and payload of the whole frames in what a server sent, which masks none."""
    found, at = list[tuple[int, bytes]](), 0
    while at + 2 <= len(data):
        opcode, size, start = data[at] & 15, data[at + 1] & 127, at + 2
        if size >= 126:
            start += 2 if size == 126 else 8
            size = int.from_bytes(data[at + 2 : start], "big")
        if start + size > len(data):
            break
        found.append((opcode, data[start : start + size]))
        at = start + size
    return found


class Wire:
    """A WebSocket at the level of bytes: nothing is sent or read but what is asked for."""

    def __init__(self, port: int, *headers: str) -> None:
        self.socket = dial(port)
        self.socket.sendall(handshake("/v1/stream", *headers))
        self._data = b""
        head = self._until(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise ConnectionError(head[:200].decode("latin-1"))
        self.head = head.decode("latin-1")

    def _until(self, end: bytes) -> bytes:
        while end not in self._data:
            part = self.socket.recv(65536)
            if not part:
                return self._data
            self._data += part
        head, _, self._data = self._data.partition(end)
        return head

    def send(self, data: bytes) -> None:
        self.socket.settimeout(10.0)
        self.socket.sendall(data)

    def hear(self, seconds: float = 10.0) -> list[tuple[int, bytes]]:
        """Frames until it is closed, or for ``seconds``."""
        data, self._data = self._data, b""
        return frames_of(data + heard(self.socket, seconds).encode("latin-1"))

    def closed(self, seconds: float = 10.0) -> int | None:
        """Code of the close frame that comes; None without one."""
        codes = [int.from_bytes(d[:2], "big") for opcode, d in self.hear(seconds) if opcode == 8]
        return codes[0] if codes else None

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
