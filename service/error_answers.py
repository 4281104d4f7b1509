"""Errors that FastAPI answers by itself, in this service's words, and what OpenAPI says of them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from wmrt.core.wire import refused_json
from wmrt.service.host import Host
from wmrt.service.messages import first_fault
from wmrt.service.refusals import Refusal

#: Of an answer after which uvicorn closes the connection: a client that was not told sends its next
#: request into that.
CLOSES = {"connection": "close"}


def document(app: FastAPI) -> Route:
    """Where OpenAPI's description of all routes so far is read. What is malformed is answered with
    400 here, never with FastAPI's own 422.

    FastAPI itself makes it at the first request, and its text at every one: of some thousand
    objects that live for a moment among those of the robots' steps, for which a service's memory
    grew by 30 KB each time.
    """
    found = app.openapi()
    for operations_of in found["paths"].values():
        for operation in operations_of.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        found["components"]["schemas"].pop(name, None)
    text = JSONResponse(found).body

    async def read(_: Request) -> Response:
        return Response(text, media_type="application/json")

    return Route("/openapi.json", read)


def answer_errors(app: FastAPI, host: Host) -> None:
    """Errors as this service words them: no traceback, no path, nothing that was sent."""

    def answer(refusal: Refusal) -> JSONResponse:
        host.refuse(refusal)
        return JSONResponse(refused_json(refusal.refused), refusal.status)

    async def refused(request: Request, error: Any) -> JSONResponse:
        return answer(error)

    async def malformed(request: Request, error: Any) -> JSONResponse:
        faults = error.errors()
        if isinstance(faults[0].get("input"), bytes):  # it was not read as JSON
            given = request.headers.get("content-type", "none")[:80]
            return answer(Refusal("malformed", f"content-type {given}: send application/json"))
        return answer(Refusal("malformed", first_fault(faults)))

    async def routed(request: Request, error: Any) -> JSONResponse:
        if error.status_code == 404:
            return answer(Refusal("not_found", "there is no such path; see /openapi.json"))
        if error.status_code == 405:
            made = answer(Refusal("not_allowed", f"not with {request.method[:20]}"))
            made.headers.update(error.headers or {})
            return made
        return answer(Refusal("malformed", "no body that can be read"))

    async def failed(request: Request, error: Exception) -> JSONResponse:
        made = answer(Refusal("internal", "a fault of the service; its log says more"))
        made.headers.update(CLOSES)
        return made

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, routed)
    app.add_exception_handler(Exception, failed)
