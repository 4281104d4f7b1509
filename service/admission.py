"""Who is told no at the door: a client whose robot has no place here, and will get none.

A connection that has its WebSocket, its tasks and its first message before it hears of it cost 830
us of processor time in the process that steps the robots, on a busy 2-core machine; here it is 160.
Its request's head says it all: the token, and in `ROBOT_HEADER` whom it is about. Nobody is let in
here. What is not plainly such a request goes the ordinary way, on which everything is looked at.
"""

from __future__ import annotations

import functools
import json
import re
from http import HTTPStatus
from typing import Any

from wmrt.core.wire import Refused, refused_json
from wmrt.service.host import Host
from wmrt.service.refusals import Refusal
from wmrt.service.routing import routed_by
from wmrt.service.security import Gate, client_name
from wmrt.service.sessions import NAME

#: Of the WebSocket; anything behind it is another request.
_LINE = b"GET /v1/stream HTTP/1.1\r\n"
_END = b"\r\n\r\n"
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Answers that are kept as bytes: a burst of clients is told the same.
_ANSWERS = 64


class Admission:
    """The robots of ``host``, and ``gate``, which looks at tokens, names and rates."""

    def __init__(self, host: Host, gate: Gate) -> None:
        self._host, self._gate = host, gate

    def closed(self) -> bool:
        """Whether anybody may be refused here: all places are taken."""
        host = self._host
        taken = len(host.registry.places) == len(host.crew.seats)
        return taken and host.warm and not host.draining

    def busy(self) -> bool:
        """Whether a robot waits for its answer."""
        return self._host.outbox.working

    def refusal(self, head: bytes, peer: Any) -> bytes | None:
        """The answer to a request that is to be refused; None: it goes the ordinary way.

        Args:
            head: what came, from its beginning on; whole if it ends as heads do.
            peer: address of the other side.
        """
        scope = opening(head, peer)
        if scope is None:
            return None
        robot = routed_by(self._host.settings, scope)
        if robot is None or not NAME.fullmatch(robot):
            return None
        host, full = self._host, self._host.registry.no_room(robot)
        if full is None:
            return None
        full.robot = robot
        try:
            self._gate.check(scope)
            with (
                host.telemetry.incoming(scope["headers"]),
                host.telemetry.span("open", robot=robot),
            ):
                raise full
        except Refusal as refusal:
            host.refuse(refusal)
            return answer(refusal.name, str(refusal), refusal.status)


def opening(head: bytes, peer: Any) -> dict[str, Any] | None:
    """A head that opens the WebSocket, as ASGI's scope has it; None for anything else, whole
    requests with something behind them among it."""
    if not head.startswith(_LINE) or not head.endswith(_END):
        return None
    headers = []
    for line in head[len(_LINE) : -len(_END)].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name):
            return None
        headers.append((name.lower(), value.strip(b" \t")))
    if dict(headers).get(b"upgrade", b"").lower() != b"websocket":
        return None
    scope: dict[str, Any] = {
        "type": "websocket",
        "path": "/v1/stream",
        "headers": headers,
        "client": peer,
    }
    scope["state"] = {"client": client_name(scope)}
    return scope


@functools.lru_cache(_ANSWERS)
def answer(name: str, message: str, status: int) -> bytes:
    """A refusal as the whole answer of HTTP, after which the connection ends."""
    body = json.dumps(refused_json(Refused(name, message))).encode()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: application/json"]
    if name == "unauthorized":
        lines.append("www-authenticate: Bearer")
    lines += [f"content-length: {len(body)}", "connection: close"]
    return "\r\n".join(lines).encode() + _END + body
