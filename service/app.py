"""The routes, over a `Host`. FastAPI writes their OpenAPI; see `wmrt.service.quick` for those that
go past it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.routing import Route

from wmrt import __version__
from wmrt.core.wire import acted_json
from wmrt.service import answers, health, operations
from wmrt.service.buckets import Buckets
from wmrt.service.error_answers import answer_errors, document
from wmrt.service.host import Host
from wmrt.service.live import Live
from wmrt.service.messages import (
    ObservationMessage,
    OpenMessage,
    OperatorMessage,
    opened_json,
    read_session,
    schema_json,
)
from wmrt.service.metrics import CONTENT_TYPE, Metrics
from wmrt.service.page import assets
from wmrt.service.quick import Quick, stepped
from wmrt.service.routing import require_routed, routed_by
from wmrt.service.security import Gate
from wmrt.service.stream import Stream
from wmrt.service.viewers import Viewers

_DESCRIPTION = """A world model in a robot's control loop, behind safety breakers.

Open a session with `POST /v1/reset`, then send observations to `POST /v1/act`, or both over the
WebSocket `/v1/stream`: a text message of kind `open` first (`POST /v1/reset`'s body with `kind`),
then observations, binary or as text of kind `observation`. An answer of status 409 and name
`unknown_session` means that the robot's memory is not here: open a session anew. Opening one heals
nothing: breakers stay as they are until observations are good again. A reset of the session, which
begins an episode, closes those that are not latched.

`GET /` is a page for people, fed by `GET /v1/live?robot=...`: server-sent events of JSON, one of
kind `hello` and then a few of kind `frame` a second.

Where a proxy sends each robot to its own process, requests about a robot name it in the header
`x-session-id`; another name than the message's is refused (421, `misrouted`). Whoever opens the
WebSocket with it for a robot that can have no place is answered with 429 in place of a WebSocket.
"""


Purpose = Annotated[
    Literal["serving", "routing"],
    Query(
        alias="for",
        description="routing: whether a proxy may send connections here. A latch, or a robot whose "
        "model fails, is no reason to send robots to where nobody knows of it.",
    ),
]


def make_app(
    host: Host, failed: Callable[[BaseException], object], dropped: Callable[[], int] = lambda: 0
) -> Gate:
    """The whole application, its limits around it.

    Args:
        failed: called when the model cannot be warmed up; the process is of no use then.
        dropped: log records that were lost.
    """
    buckets = Buckets(host.settings.rate, 2 * host.settings.rate)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(host.start())  # probes are answered meanwhile
        warming.add_done_callback(lambda task: _look(task, failed))
        try:
            yield
        finally:
            await asyncio.wait([warming])
            await host.stop()

    app = FastAPI(
        title="wmrt",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=life,
        openapi_url=None,  # see `document`; pages that show it would load scripts from elsewhere
    )
    if host.registry.handover is not None:
        host.registry.handover.orders.obey = partial(operations.obey, host)
    app.include_router(_routes(host))
    app.router.routes.append(Route("/v1/live", Viewers(host, Live(host)), methods=["GET"]))
    app.router.routes.extend(assets.routes())
    answer_errors(app, host)
    gate = Gate(Quick(app, host, Stream(host, buckets)), host, buckets)
    metrics = Metrics(host, lambda: gate.connections, dropped)
    app.include_router(_metrics(metrics))
    app.router.routes.append(document(app))
    return gate


def _look(task: asyncio.Task[None], failed: Callable[[BaseException], object]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        failed(error)


def _routes(host: Host) -> APIRouter:
    router = APIRouter()
    _probes(router, host)
    _control(router, host)
    _facts(router, host)
    _operator(router, host)
    return router


def _probes(router: APIRouter, host: Host) -> None:
    def told(request: Request, **found: list[str]) -> dict[str, Any]:
        """What is not empty, for those who have the token."""
        entitled = request.scope["state"]["rights"].client
        return {name: why for name, why in found.items() if why and entitled}

    @router.get(
        "/healthz",
        response_model=answers.Health,
        response_model_exclude_unset=True,
        responses={503: {"model": answers.Health, "description": "Start it again"}},
        tags=["probes"],
    )
    async def healthz(request: Request, response: Response) -> dict[str, Any]:
        """Whether it can go on: its event loop answers, no step is stuck, the device works."""
        dying = host.dying()
        response.status_code = 503 if dying else 200
        return {"ok": not dying, **told(request, reasons=dying)}

    @router.get(
        "/readyz",
        response_model=answers.Ready,
        response_model_exclude_unset=True,
        responses={
            **answers.refusals(400),
            503: {"model": answers.Ready, "description": "Not ready"},
        },
        tags=["probes"],
    )
    async def readyz(
        request: Request,
        response: Response,
        purpose: Purpose = "serving",
    ) -> dict[str, Any]:
        """Whether further robots can be served: not while warming up, stopping, latched, stuck,
        late, or with a model that fails. With the token, also why not, and what else is wrong."""
        reasons = host.reasons() if purpose == "serving" else health.routing(host)
        response.status_code = 503 if reasons else 200
        found = told(request, reasons=reasons, warnings=host.warnings())
        return {"ready": not reasons, **found}


def _control(router: APIRouter, host: Host) -> None:
    @router.post(
        "/v1/act",
        response_model=answers.Action,
        responses=answers.refusals(400, 408, 409, 413, 421, 429, 503),
        tags=["control"],
    )
    async def act(message: ObservationMessage, request: Request) -> Any:
        """One control step: an observation in, the action to send out.

        A session that is not in this process and has a snapshot goes on from there; the header
        `x-wmrt-steps-lost` then says how many sequence numbers before this one it knows nothing of.
        """
        answer, headers = await stepped(host, message, request.scope)
        return JSONResponse(acted_json(answer), headers=headers)

    @router.post(
        "/v1/reset",
        response_model=answers.Opened,
        responses=answers.refusals(400, 408, 409, 413, 421, 429, 503),
        tags=["control"],
    )
    async def reset(message: OpenMessage, request: Request) -> dict[str, Any]:
        """Open a session; with `session`, start a new episode of it. Breakers are not reset."""
        require_routed(host.settings, routed_by(host.settings, request.scope), message.robot)
        if message.session is None:
            opened = await host.open(message.robot, None, message.measured, None)
        else:
            session = read_session(message.session)
            if message.robot not in host.registry.places:  # it may be on disk
                await host.open(message.robot, session, message.measured, None)
            opened = await host.reset(message.robot, session, message.measured)
        return opened_json(host, opened)


def _facts(router: APIRouter, host: Host) -> None:
    @router.get(
        "/v1/schema",
        response_model=answers.Schema,
        responses=answers.refusals(429),
        tags=["facts"],
    )
    async def schema() -> dict[str, Any]:
        """The states that it takes and the actions that it gives."""
        return schema_json(host)

    @router.get(
        "/v1/info", responses=answers.shown(answers.INFO) | answers.refusals(429), tags=["facts"]
    )
    async def info() -> dict[str, Any]:
        """What runs, within which limits, and how its robots are."""
        return operations.info(host)

    @router.get(
        "/v1/breakers",
        responses=answers.shown(answers.BREAKERS) | answers.refusals(400, 409, 421, 429, 503),
        tags=["facts"],
    )
    async def breakers(
        request: Request,
        robot: str | None = Query(
            None, description="All robots if it is left out.", examples=["r2"]
        ),
    ) -> Response:
        """State, counters and last events of the breakers."""
        if robot is not None:
            require_routed(host.settings, routed_by(host.settings, request.scope), robot)
        told = await operations.breakers(host, robot)
        return Response(told, media_type="application/json")


def _metrics(metrics: Metrics) -> APIRouter:
    router = APIRouter()

    @router.get(
        "/metrics",
        response_class=Response,
        responses=answers.shown(answers.METRICS, "text/plain") | answers.refusals(429),
        tags=["facts"],
    )
    async def exposition() -> Response:
        """Everything that is counted, for Prometheus. Its own token opens this alone."""
        return Response(await metrics.exposition(), media_type=CONTENT_TYPE)

    return router


def _operator(router: APIRouter, host: Host) -> None:
    @router.post(
        "/v1/breakers/{action}",
        response_model=answers.Robot,
        response_model_exclude_unset=True,
        responses=answers.refusals(400, 403, 408, 409, 413, 421, 429, 503),
        tags=["operator"],
    )
    async def operate(
        action: operations.Action, message: OperatorMessage, request: Request
    ) -> dict[str, Any]:
        """End a latch (`reset`), `engage`, `disengage`, press (`estop`) or `release` the stop.

        All but `estop` and `disengage` take the operator's token. A reset does not start motion:
        `engage` does. A stop is shown as a latch as soon as it is pressed. It latches with the
        robot's next action, and `reset` and `engage` are refused until then. Where processes share
        a folder of snapshots, the one that serves the robot does it, whichever is asked; `estop`
        and `disengage` hold for a robot that is served nowhere now. A 503 of name `unconfirmed`
        says that it is not known to be done.
        """
        require_routed(host.settings, routed_by(host.settings, request.scope), message.robot)
        state = request.scope["state"]
        operator = state["rights"].operator
        return await operations.operate(host, action, message, operator, state["client"])
