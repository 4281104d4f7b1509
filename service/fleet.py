"""Robots over several processes, on Ray Serve: each replica is the service of `wmrt serve`.

Ray Serve starts the replicas, watches them, replaces them and routes every request by the robot's
name (`wmrt.core.wire.ROBOT_HEADER`); sessions, breakers, limits and refusals are those of one
process, and robots go from replica to replica through the folder of snapshots (`handover`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wmrt.core.errors import UsageError
from wmrt.core.extras import require
from wmrt.core.wire import ROBOT_HEADER
from wmrt.service import fleet_ray, interpreter
from wmrt.service.app import make_app
from wmrt.service.audit import audit_of
from wmrt.service.crew import Crew, load_crew
from wmrt.service.host import Host
from wmrt.service.logs import logs_of
from wmrt.service.seats import Seat, warm_up
from wmrt.service.settings import ServeSettings, read_settings
from wmrt.service.telemetry import telemetry_of

#: Name of the application and of its deployment.
NAME = "wmrt"
#: Settings that a fleet needs otherwise than one process, where nothing else is said. A snapshot a
#: second: what a replica that is killed loses. Robots without a client give their places away soon:
#: they can be restored. All the places that there can be: names spread unevenly, and the robots of
#: a replica that died go to the others. No processor of their own: replicas would share the last.
DEFAULTS = {"snapshot_every": 1.0, "idle": 30.0, "robots": 16, "cpu": -1}
_TOKENS = ("token", "operator_token", "metrics_token")
#: Settings that mean one process's own socket.
_NOT_HERE = ("socket", "shared", "route_by", "label")


class Fleet(BaseModel):
    """What a fleet has beyond its processes' own settings.

    Attributes:
        replicas: processes. cpus, gpus: what Ray counts for each, where it has machines to choose.
        seats: ``module:function`` that gives a replica its seats, from its settings, instead of a
            model.
        generation: of the deployment; another one replaces the replicas.
        token, operator_token, metrics_token: a replica without it in its environment does not
            start.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    replicas: int = Field(2, ge=1, le=256)
    cpus: float = Field(0.0, ge=0)
    gpus: float = Field(0.0, ge=0)
    seats: str | None = None
    generation: int = 0
    token: bool = False
    operator_token: bool = False
    metrics_token: bool = False


def read_fleet(given: Mapping[str, Any]) -> tuple[Fleet, dict[str, Any]]:
    """A fleet and its processes' settings, as far as they are given, from one set of arguments.

    Raises:
        UsageError: the first thing that is wrong.
    """
    values = {key: value for key, value in given.items() if value is not None}
    own = {key: values.pop(key) for key in Fleet.model_fields if key in values}
    try:
        fleet = Fleet(**own)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{name}: {first['msg']}, got {str(first.get('input'))[:80]!r}") from None
    for name in _NOT_HERE:
        if name in values:
            raise UsageError(f"{name} is a setting of one process, and a fleet's replicas have own")
    return fleet, values


def replica_settings(values: Mapping[str, Any], label: str = "replica") -> ServeSettings:
    """The settings of one replica.

    Raises:
        UsageError: by name; a fleet without a folder of snapshots, or on a Unix socket.
    """
    if values.get("snapshots") is None and not _in_environment("snapshots"):
        raise UsageError("snapshots: a fleet's robots go from replica to replica through a folder")
    if _in_environment("socket"):
        raise UsageError("WMRT_SERVE_SOCKET: a fleet's proxy listens on TCP; unset it")
    unsaid = {name: value for name, value in DEFAULTS.items() if not _in_environment(name)}
    own = {"shared": True, "route_by": ROBOT_HEADER, "label": label}
    return read_settings(**{**unsaid, **values, **own})


def _in_environment(name: str) -> bool:
    return f"WMRT_SERVE_{name.upper()}" in os.environ


def load_seats(name: str, settings: ServeSettings) -> Sequence[Seat]:
    """The seats of ``module:function``. `UsageError` if there is none of that name."""
    module, _, function = name.partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"seats {name!r}: module:function that gives seats; {error}") from None
    seats: Sequence[Seat] = make(settings)
    return seats


class Replica:
    """One process of a fleet, as Ray Serve makes it: it builds the application that Serve calls.

    Raises:
        WmrtError: settings or a model that cannot be had.
    """

    def __init__(self, fleet: Fleet, values: Mapping[str, Any], label: str) -> None:
        settings = replica_settings(values, label)
        for name in _TOKENS:
            if getattr(fleet, name) and getattr(settings, name) is None:
                raise UsageError(f"WMRT_SERVE_{name.upper()} is not in a replica's environment")
        audit = audit_of(settings)  # a file that cannot be had is told before the work
        self.crew = (
            load_crew(settings)
            if fleet.seats is None
            else Crew(load_seats(fleet.seats, settings), settings)
        )
        warm_up(self.crew.seats)  # robots are routed here as soon as this is over
        self._open = contextlib.ExitStack()
        telemetry = self._open.enter_context(contextlib.closing(telemetry_of(settings)))
        self.host = Host(self.crew, settings, audit, telemetry=telemetry)
        self.host.settle = interpreter.settle
        self._failure: BaseException | None = None

    def application(self) -> Any:
        """What Serve calls, in its event loop."""
        self._logs = self._open.enter_context(logs_of(self.host.settings).installed())
        return make_app(self.host, self._failed, lambda: self._logs.dropped)

    def _failed(self, error: BaseException) -> None:
        self._failure = error

    async def check_health(self) -> None:
        """For Serve: raises where ``/healthz`` fails, because only another process would help."""
        why = self.host.dying()
        if self._failure is not None:
            why.append(f"the model cannot be stepped: {self._failure}")
        if why:
            raise RuntimeError("; ".join(why))

    async def stop(self) -> None:
        """Answer what is in work, keep every robot, and end the connections."""
        await self.host.drain()
        await self.host.stop()
        await asyncio.to_thread(self.host.audit.close)  # its last lines go into the log, too
        await asyncio.to_thread(self._open.close)


def application(given: Mapping[str, Any]) -> Any:
    """The fleet as a Serve application, for `wmrt fleet`, ``serve run`` and Serve's config files
    (``import_path: wmrt.service.fleet:application``).

    Args:
        given: of `Fleet` and `ServeSettings`. Tokens are never among them: replicas read
            WMRT_SERVE_TOKEN and WMRT_SERVE_OPERATOR_TOKEN from their own environment.

    Raises:
        MissingExtraError: without Ray Serve. UsageError: settings that cannot be meant.
    """
    serve = require("ray.serve", "fleet")
    for name in _TOKENS:
        if not isinstance(given.get(name), bool | None):
            raise UsageError(f"{name}: Ray keeps arguments; set WMRT_SERVE_{name.upper()} instead")
    fleet, values = read_fleet(given)
    settings = replica_settings(values)
    deployment = serve.deployment(
        name=NAME,
        num_replicas=fleet.replicas,
        ray_actor_options={"num_cpus": fleet.cpus, "num_gpus": fleet.gpus},
        # The service's own limit comes first, and says so; Serve would let requests wait.
        max_ongoing_requests=settings.connections + 32,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=settings.drain + 15.0,
        health_check_period_s=2.0,
        health_check_timeout_s=10.0,
        **fleet_ray.routing(),
    )(serve.ingress(None)(_served()))
    return deployment.bind(fleet.model_dump(), values)


def _served() -> type:
    """The class that Serve makes instances of."""

    class WmrtReplica:
        def __init__(self, fleet: dict[str, Any], values: dict[str, Any]) -> None:
            serve = require("ray.serve", "fleet")
            label = serve.get_replica_context().replica_id.unique_id
            self._own = Replica(Fleet(**fleet), values, f"replica-{label}")
            fleet_ray.prepare_replica(self._own.stop)

        def __serve_build_asgi_app__(self) -> Any:
            return self._own.application()

        async def check_health(self) -> None:
            await self._own.check_health()

    return WmrtReplica
