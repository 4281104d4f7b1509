"""Serves the live page's files from memory. They hold no data, so they take no token."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FILES = sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in _TYPES)
#: Path of a request to the file that answers it.
PATHS = {"/" if path.name == "index.html" else f"/page/{path.name}": path for path in _FILES}
#: Scripts and styles are files of this service's own and nothing else is; text never becomes
#: markup (trusted types); no other page may frame this one, or learn from where one came here.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Cache-Control": "no-cache",  # asked for anew, answered by 304
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Asset:
    """One file, read once."""

    def __init__(self, path: Path) -> None:
        self._body = path.read_bytes()
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'
        self._type = _TYPES[path.suffix]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {**HEADERS, "ETag": self._tag}
        if self._tag in Request(scope).headers.get("if-none-match", ""):
            answer = Response(status_code=304, headers=headers)
        else:
            answer = Response(self._body, headers=headers, media_type=self._type)
        await answer(scope, receive, send)


def routes() -> list[BaseRoute]:
    """A route for each file."""
    return [Route(at, Asset(path), methods=["GET"]) for at, path in PATHS.items()]
