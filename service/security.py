"""What every request passes before anything looks at it: host, origin, token, size, rate.

Pure ASGI around the application; a WebSocket's messages do not pass through it again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from pydantic import SecretStr
from structlog.contextvars import bind_contextvars

from wmrt.core.wire import refused_json
from wmrt.service.buckets import Buckets
from wmrt.service.page.assets import PATHS
from wmrt.service.refusals import Refusal
from wmrt.service.settings import LOOPBACK

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from wmrt.service.host import Host

#: Seconds that a request has until its body is there.
BODY_SECONDS = 10.0
#: Requests a second and address with a wrong token or none; a burst may have ten times as many.
GUESSES = 10.0
#: Bytes of a body that are read although the request is refused, so that its connection can go on.
LEFT = 65536
#: Paths that need no token: they tell whether, never what.
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
#: The live page's files hold no data, so these take no token either; limits are for them, too.
FREE_PATHS = OPEN_PATHS | PATHS.keys()
#: What the token for metrics opens.
METRICS_PATH = "/metrics"
#: Answers HEAD by itself: what GET gives has no end.
STREAM_PATH = "/v1/live"
_REQUEST = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Rights(NamedTuple):
    """What a request may do.

    Attributes:
        client: what robots and people may. operator: reset breakers too. metrics: read them.
    """

    client: bool
    operator: bool
    metrics: bool


class Tokens:
    """Compares bearer tokens. Digests are compared, in a time that depends on neither token."""

    def __init__(
        self,
        token: SecretStr | None,
        operator: SecretStr | None = None,
        metrics: SecretStr | None = None,
    ) -> None:
        self._client, self._operator = _digest(token), _digest(operator)
        self._metrics = _digest(metrics)

    def rights(self, authorization: str | None) -> Rights:
        """What this header allows."""
        scheme, _, given = (authorization or "").partition(" ")
        own = hashlib.sha256(given.strip().encode()).digest() if scheme.lower() == "bearer" else b""
        operator = self._operator is not None and hmac.compare_digest(own, self._operator)
        client = self._client is None or hmac.compare_digest(own, self._client)
        metrics = self._metrics is not None and hmac.compare_digest(own, self._metrics)
        return Rights(client or operator, operator, client or operator or metrics)


def _digest(token: SecretStr | None) -> bytes | None:
    return None if token is None else hashlib.sha256(token.get_secret_value().encode()).digest()


class Gate:
    """Lets a request through to ``app``, or refuses it.

    Sets ``scope["state"]["rights"]``, a `Rights`, and ``scope["state"]["client"]``, a name for
    limits and the audit log.

    Args:
        host: whose settings and audit log, and who counts refusals.
        buckets: messages a second, by client.

    Attributes:
        connections: requests and WebSockets at this time.
    """

    def __init__(self, app: ASGIApp, host: Host, buckets: Buckets) -> None:
        settings = self._settings = host.settings
        self.app, self._host = app, host
        self._tokens = Tokens(settings.token, settings.operator_token, settings.metrics_token)
        self._names = {*LOOPBACK, *settings.names}
        self.connections = 0
        self._buckets, self._guesses = buckets, Buckets(GUESSES, 10 * GUESSES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        self._host.outbox.catch_up()  # whoever has got an answer may ask about it
        try:
            state = scope.setdefault("state", {})
            state["client"] = client_name(scope)
            send = tagged(scope, send)
            state["rights"] = self.check(scope)
        except Refusal as refusal:
            self._host.refuse(refusal)
            await refuse(scope, receive, send, refusal)
            return
        self.connections += 1
        try:
            if scope["type"] == "http":
                scope = _as_get(scope)
                receive = await _body(receive, self._settings.max_body)
            with self._host.telemetry.incoming(scope["headers"]):
                await self.app(scope, receive, send)
        except Refusal as refusal:  # of the body; the application turns its own into answers
            self._host.refuse(refusal)
            await refuse(scope, receive, send, refusal)
        finally:
            self.connections -= 1

    def check(self, scope: Scope) -> Rights:
        """What it may do; `Refusal` for what may not pass."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        client = scope["state"]["client"]
        rights = self._tokens.rights(headers.get(b"authorization", b"").decode("latin-1"))
        entitled = rights.metrics if scope["path"] == METRICS_PATH else rights.client
        # Probes are let through when clients are many: that is when somebody looks.
        if scope["path"] not in OPEN_PATHS:
            if self.connections >= self._settings.connections:
                raise Refusal(
                    "too_many_connections", f"{self.connections} connections, which is the limit"
                )
            # Who guesses does not use up what is left to the robots behind the same address.
            if not (self._buckets if entitled else self._guesses).take(client):
                raise too_fast(self._settings.rate if entitled else GUESSES)
        self._check_site(headers)
        if not entitled and scope["path"] not in FREE_PATHS:
            self._host.audit.note("unauthorized", client=client, path=str(scope["path"])[:80])
            wrong = "this token does not open that; " if b"authorization" in headers else ""
            raise Refusal("unauthorized", f"{wrong}send the token: Authorization: Bearer <token>")
        size = headers.get(b"content-length", b"").decode("latin-1")
        if size.isdecimal() and int(size) > self._settings.max_body:
            raise _too_large(self._settings.max_body)
        return rights

    def _check_site(self, headers: dict[bytes, bytes]) -> None:
        """No page of another site may speak for whoever looks at it, nor reach this host under a
        name that the page's owner has made up."""
        host = headers.get(b"host", b"").decode("latin-1")
        name = _parts(f"//{host}").hostname or ""
        if host and not self._settings.open and name not in self._names:
            raise Refusal("forbidden", f"this service is not called {name[:80]}; see --name")
        origin = headers.get(b"origin")
        if origin is not None and _parts(origin.decode("latin-1")).netloc != host:
            raise Refusal("forbidden", "requests from pages of other sites are not served")


def _parts(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError:  # an opening bracket without its end, for one
        raise Refusal("malformed", "a host or origin that is no address") from None


def _as_get(scope: Scope) -> Scope:
    """HEAD is GET without its body, which the server leaves out of the answer: FastAPI's routes do
    not know of it, and it is what load balancers probe with. A stream has no end to leave out."""
    if scope["method"] == "HEAD" and scope["path"] != STREAM_PATH:
        return {**scope, "method": "GET"}
    return scope


def client_name(scope: Any) -> str:
    """Whom limits and the audit log mean: the peer's address, or ``unix``."""
    peer = scope.get("client")
    return str(peer[0]) if peer and peer[0] else "unix"


def too_fast(rate: float) -> Refusal:
    return Refusal("too_fast", f"more than {rate:g} messages a second")


def _too_large(limit: int) -> Refusal:
    return Refusal("too_large", f"more than {limit} bytes, which is the limit")


def tagged(scope: Scope, send: Send) -> Send:
    """Give a request its name: the caller's ``X-Request-ID`` if it is a harmless one, else a new
    one. Whatever is logged for it carries the name, and so does the answer of HTTP."""
    given = dict(scope["headers"]).get(b"x-request-id", b"")
    name = given if _REQUEST.fullmatch(given) else secrets.token_hex(8).encode()
    bind_contextvars(request=name.decode())  # of the task that uvicorn has made for this request

    async def tag(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"x-request-id", name)]}
        await send(message)

    return tag if scope["type"] == "http" else send


async def _body(receive: Receive, limit: int) -> Receive:
    """Read a body whole, so that one that is too large or too slow is told as such, and give a
    ``receive`` that has it. `Refusal` too_large or too_slow."""
    try:
        body = await _in_time(_whole(receive, limit))
    except asyncio.TimeoutError:
        raise Refusal("too_slow", f"no whole request within {BODY_SECONDS:g} s") from None
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        if body is not None and waiting:
            return waiting.pop()
        return await receive() if body is not None else {"type": "http.disconnect"}

    return again


async def _whole(receive: Receive, limit: int) -> bytes | None:
    """A body; None if the client went away before its end."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), message.get("more_body", False)
        if size > limit:
            raise _too_large(limit)
    return b"".join(parts)


async def _in_time(work: Coroutine[Any, Any, bytes | None]) -> bytes | None:
    if sys.version_info < (3, 11):
        return await asyncio.wait_for(work, BODY_SECONDS)
    async with asyncio.timeout(BODY_SECONDS):  # without a task of its own: 33 us instead of 67
        return await work


def _has_more(scope: Scope) -> bool:
    """Whether a body follows that is not worth reading."""
    given = dict(scope["headers"])
    size = given.get(b"content-length", b"0")
    return b"transfer-encoding" in given or not size.isdigit() or int(size) > LEFT


async def refuse(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    """Answer with a refusal, to a request or to the opening of a WebSocket."""
    body = json.dumps(refused_json(refusal.refused)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if refusal.name == "unauthorized":
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.name in ("too_large", "too_slow") or _has_more(scope):
        headers.append((b"connection", b"close"))  # what is left of the body is not read
    prefix = "http"
    if scope["type"] == "websocket":
        prefix = "websocket.http"
        await receive()  # websocket.connect
    await send({"type": f"{prefix}.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": body, "more_body": False})
