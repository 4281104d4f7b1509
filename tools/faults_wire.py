"""Faults on the wire: what is no HTTP, no WebSocket, no message, or too much of it."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import struct
import zlib
from collections import Counter
from collections.abc import Iterator

from tools.fault_case import Scene, Seen, case
from tools.service_rig import secrets_seed, until
from tools.wire import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    TEXT,
    Wire,
    dial,
    frame,
    handshake,
    heard,
    http_request,
    request,
)  # fmt: skip

HUGE = 100_000_000
#: Of a refused body: what may have been taken from a client before it was told. Kernel buffers of
#: the loopback hold up to 6 MB of it.
TAKEN = 16 << 20


def _requests(rng: random.Random) -> Iterator[bytes]:
    """What is no request of HTTP/1.1, or only just."""
    yield from (rng.randbytes(rng.randrange(1, 3000)) for _ in range(20))
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500)  # TLS
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield b"GET / HTTP/9.9\r\n\r\n"
    yield b"GET /v1/info HTTP/1.1\r\nHost: a\x00b\r\n\r\n"
    yield b"GET /v1/info HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n"
    yield b"GET /v1/info HTTP/1.1\r\n" + b"X: a\r\n" * 20_000 + b"\r\n"
    for host in ("[", "[::1", "a]b", "@@", "%", "\xff\xfe", "localhost:99999999", " "):
        for head in (request("GET", "/v1/info"), handshake()):
            yield head.replace(b"localhost", host.encode("latin-1"))
    yield request("GET", "/v1/info", b"", "Origin: http://[")
    yield request("GET", "/v1/%ff%00%2e%2e/../../etc/passwd")
    yield request("GET", "/v1/breakers?robot=%ff%00&robot=" + "a" * 5000)
    yield request("POST", "/v1/act", b"{}", "Content-Length: 5")
    yield b"POST /v1/act HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"
    for size in (b"zz", b"-1", b"f" * 40):
        head = b"POST /v1/act HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        yield head + size + b"\r\n"
    yield handshake().replace(b"13", b"12")
    yield handshake().replace(b"dGhl", b"????")
    yield handshake("/nowhere")
    yield request("POST", "/v1/act", b'{"version": 1e999}')
    yield request("POST", "/v1/act", b"[" * 900_000)
    yield request("POST", "/v1/reset", b'{"robot": "\\ud800"}')
    yield request("POST", "/v1/act", gzip.compress(bytes(HUGE)), "Content-Encoding: gzip")


@case("bytes that are no HTTP, and heads that are hardly any", "refused or closed, never a 5xx")
def garbage_requests(scene: Scene) -> Seen:
    rng = random.Random(secrets_seed())
    count = 0
    for data in _requests(rng):
        with contextlib.suppress(ConnectionError):
            reply = http_request(scene.service.port, data, 0.3)
            scene.status(reply)
        count += 1
    return Seen(f"{count} of them, no 5xx")


def _frames(rng: random.Random) -> dict[str, tuple[bytes, set[int | None]]]:
    """What breaks a WebSocket, and the codes that may close it."""
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = bomb.compress(bytes(50_000_000)) + bomb.flush(zlib.Z_SYNC_FLUSH)
    return {
        "not masked": (frame(TEXT, b"{}", mask=False), {1002}),
        "unknown opcode": (frame(3, b"x"), {1002}),
        "compressed bomb": (frame(BINARY, packed[:60_000], rsv=4), {1002}),
        "long control frame": (frame(PING, bytes(126)), {1002}),
        "ping in pieces": (frame(PING, b"", fin=False), {1002}),
        "continuation of nothing": (frame(CONT, b"x"), {1002}),
        "message within a message": (frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), {1002}),
        "2^63 - 1 bytes told": (frame(BINARY, b"", length=2**63 - 1), {1009}),
        "2^64 - 1 bytes told": (frame(BINARY, b"", length=2**64 - 1), {1009, 1002}),
        "100 MB told": (frame(BINARY, b"x" * 100, length=HUGE), {1009}),
        "no UTF-8": (frame(TEXT, b"\xff\xfe{}"), {1007}),
        "close of one byte": (frame(CLOSE, b"\x03"), {1002}),
        "close code 999": (frame(CLOSE, struct.pack("!H", 999)), {1002}),
        "5 000 empty pieces": (
            frame(TEXT, b"{", fin=False) + frame(CONT, b"", fin=False) * 5_000, {1009},
        ),
        "random bytes": (b"\xff" + rng.randbytes(1000), {1002}),
    }  # fmt: skip


def _opened(scene: Scene, name: str) -> Wire:
    wire = Wire(scene.service.port)
    text = json.dumps({"kind": "open", "version": 1, "robot": name}).encode()
    wire.send(b"".join(frame(TEXT if i == 0 else CONT, text[i : i + 9], fin=i + 9 >= len(text))
                       for i in range(0, len(text), 9)))  # fmt: skip
    return wire


@case("frames that are none", "closed with the code of what is wrong; the robot's place is held")
def garbage_frames(scene: Scene) -> Seen:
    codes: Counter[int | None] = Counter()
    for at, (kind, (data, allowed)) in enumerate(_frames(random.Random(secrets_seed())).items()):
        with _opened(scene, "garbage") if at == 0 else Wire(scene.service.port) as wire:
            with contextlib.suppress(ConnectionError):
                wire.send(data)
            code = wire.closed(5.0)
            scene.expect(code in allowed, f"{kind}: closed with {code}, expected {allowed}")
            codes[code] += 1
    return Seen(f"closed with {dict(sorted(codes.items(), key=str))}")


def _messages(rng: random.Random, whole: bytes) -> Iterator[bytes | str]:
    """Messages that are none, over a connection that is."""
    yield from (rng.randbytes(rng.randrange(200)) for _ in range(50))
    yield from (whole[:size] for size in range(0, len(whole), 5))
    yield from (whole + b"x", whole[:2] + b"\x09" + whole[3:], whole[:3] + b"\x07" + whole[4:])
    yield from ("", "{", "[]", "null", "{}", '{"kind": 1}', '{"kind": "fly", "version": 1}')
    yield whole.decode("latin-1")  # text where binary is due
    yield json.dumps({"kind": "open", "version": 1, "robot": "r1"}).encode()  # and the reverse
    yield '{"kind": "observation", "version": NaN}'
    yield '{"kind": "observation", "version": 1, "sequence": ' + "9" * 4000 + "}"
    yield "[" * 100_000
    yield json.dumps({"kind": "observation", "version": 1, "state": {"x" * 100_000: 1}})


@case("messages that are none", "each is told malformed; the connection and its robot go on")
def garbage_messages(scene: Scene) -> Seen:
    rng = random.Random(secrets_seed())
    with scene.raw("messages") as raw:
        whole, count = raw.packed(0), 0
        for message in _messages(rng, whole):
            said = raw.name(message)
            scene.expect(said == "malformed", f"{message[:60]!r}: {said}")
            count += 1
        # One bit of a good one is another; not of the sequence number's upper half, after which
        # nothing is new any more.
        for at in [*range(20), *range(24, len(whole))]:
            spoilt = bytearray(whole)
            spoilt[at] ^= 1 << rng.randrange(8)
            raw.say(bytes(spoilt))
            raw.hear()
            count += 1
        scene.expect(raw.name(raw.packed(2**40)) == "action", "the connection did not go on")
    return Seen(f"{count} of them told, then a step as ever")


@case("100 MB at once", "refused before it is read: 413, or close code 1009")
def huge_bodies(scene: Scene) -> Seen:
    port, sent = scene.service.port, []
    length = request("POST", "/v1/act").replace(b"Length: 0", b"Length: %d" % HUGE)
    chunked = b"POST /v1/act HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = bytes(65536)
    for head, part in ((length, piece), (chunked, b"10000\r\n" + piece + b"\r\n")):
        with dial(port) as own:
            sent.append(_pour(own, head, part))
            reply = heard(own, 1.0)
            scene.status(reply, 413)
    for whole in (True, False):
        with Wire(port) as wire:
            first = frame(BINARY, piece, length=HUGE) if whole else frame(BINARY, piece, fin=False)
            rest = piece if whole else frame(CONT, piece, fin=False)
            sent.append(_pour(wire.socket, first, rest))
            code = wire.closed(2.0)  # lost where the connection was reset below what was unread
            scene.expect(code in (1009, None), f"closed with {code}")
    scene.expect(max(sent) < TAKEN, f"{sent} bytes were taken")
    return Seen(f"at most {max(sent) / 1e6:.1f} MB left the sender")


def _pour(own: object, head: bytes, part: bytes) -> int:
    """Send ``part`` until it is refused, or 100 MB are out; bytes that left."""
    own.settimeout(2.0)  # type: ignore[attr-defined]
    sent = 0
    try:
        own.sendall(head)  # type: ignore[attr-defined]
        while sent < HUGE:
            own.sendall(part)  # type: ignore[attr-defined]
            sent += len(part)
    except (TimeoutError, OSError):
        pass
    return sent


@case("pings without end from a client that reads nothing", "no pong piles up; it is dropped")
def ping_flood(scene: Scene) -> Seen:
    data = frame(PING, bytes(125)) * 500
    with _opened(scene, "pings") as wire:
        sent = 0
        with contextlib.suppress(TimeoutError, OSError):
            while sent < (200 << 20 if scene.long else 40 << 20):
                wire.send(data)
                sent += len(data)
        took = until(lambda: _gone(wire), 3 * scene.patience + 15.0)
    return Seen(f"{sent >> 20} MiB of pings, then dropped", took)


def _gone(wire: Wire) -> bool:
    """Whether the other side has let go, which only a write tells who does not read."""
    try:
        wire.socket.settimeout(0.2)
        wire.socket.sendall(frame(PING))
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


CASES = [garbage_requests, garbage_frames, garbage_messages, huge_bodies, ping_flood]
