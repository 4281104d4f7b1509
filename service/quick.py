"""`POST /v1/act`, and the WebSocket, without a framework between the socket and the robot.

FastAPI documents the former and can serve it; `tests/service/test_quick.py` compares the two,
answer by answer. On a busy 2-core machine a step kept the event loop for 1.56 ms with it, for 1.30
ms without.
"""

from __future__ import annotations

import json
from email.message import Message
from typing import TYPE_CHECKING, Any

from wmrt.core.wire import Acted, acted_json, refused_json
from wmrt.service.error_answers import CLOSES
from wmrt.service.host import Host
from wmrt.service.messages import ObservationMessage, dumps, read_json
from wmrt.service.refusals import Refusal
from wmrt.service.routing import require_routed, routed_by

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from wmrt.service.places import Opened

#: What it answers, and what a WebSocket is opened at; the rest goes on to the application.
PATH, STREAM_PATH = "/v1/act", "/v1/stream"
_JSON = b"application/json"


async def stepped(
    host: Host, message: ObservationMessage, scope: Any
) -> tuple[Acted, dict[str, str]]:
    """One control step of a robot: the answer, and the headers that go with it.

    Args:
        scope: of the request, for the header by which a fleet finds the robot.

    Raises:
        Refusal: by name.
    """
    require_routed(host.settings, routed_by(host.settings, scope), message.robot)
    seen = message.observed()
    opened: Opened | None = await host.resume(seen)
    answer = await host.act(seen)
    return answer, {} if opened is None else {"x-wmrt-steps-lost": str(opened.steps_lost)}


class Quick:
    """Answers control steps itself, hands WebSockets to ``stream``, and all else on to ``app``.

    Attributes:
        app: FastAPI's application.
    """

    def __init__(self, app: ASGIApp, host: Host, stream: ASGIApp) -> None:
        self.app, self._host, self._stream = app, host, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and scope["path"] == STREAM_PATH:
            await self._stream(scope, receive, send)
            return
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        headers: dict[str, str] = {}
        try:
            message = _read(scope["headers"], (await receive()).get("body", b""))
            answer, headers = await stepped(self._host, message, scope)
            status, content = 200, acted_json(answer)
        except Refusal as refusal:
            status, content = self._refused(refusal)
        except Exception:
            said = Refusal("internal", "a fault of the service; its log says more")
            await _answer(send, *self._refused(said), CLOSES)
            raise  # uvicorn logs it
        await _answer(send, status, content, headers)

    def _refused(self, refusal: Refusal) -> tuple[int, dict[str, Any]]:
        self._host.refuse(refusal)
        return refusal.status, refused_json(refusal.refused)


async def _answer(send: Send, status: int, content: dict[str, Any], more: dict[str, str]) -> None:
    body = dumps(content).encode()
    headers = [(b"content-type", _JSON), (b"content-length", b"%d" % len(body))]
    headers += [(name.encode(), value.encode()) for name, value in more.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _read(headers: Any, body: bytes) -> ObservationMessage:
    """The observation of a request; `Refusal` malformed, in the words of FastAPI's own checks."""
    if not body:
        raise Refusal("malformed", "Field required")
    kind = next((value for name, value in headers if name == b"content-type"), b"none")
    if kind != _JSON and not _is_json(kind.decode("latin-1")):
        given = kind.decode("latin-1")[:80]
        raise Refusal("malformed", f"content-type {given}: send application/json")
    try:
        data = json.loads(body)
    except json.JSONDecodeError as error:
        raise Refusal("malformed", f"{error.pos}: JSON decode error") from None
    except (ValueError, RecursionError):  # an encoding that is none, brackets within brackets
        raise Refusal("malformed", "no body that can be read") from None
    if not isinstance(data, dict):
        said = "Input should be a valid dictionary or object to extract fields from"
        raise Refusal("malformed", said)
    message: ObservationMessage = read_json(ObservationMessage, data)
    return message


def _is_json(kind: str) -> bool:
    """Whether a content-type is JSON's; one that a form of another site's page can have is not."""
    parsed = Message()
    parsed["content-type"] = kind
    subtype = parsed.get_content_subtype()
    return parsed.get_content_maintype() == "application" and (
        subtype == "json" or subtype.endswith("+json")
    )
