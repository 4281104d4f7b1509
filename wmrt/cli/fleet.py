"""``wmrt fleet``: several processes of `wmrt serve` on Ray Serve, for a fleet of robots."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from wmrt.cli.common import console, json_option, write_result
from wmrt.cli.service_options import (
    DRAIN,
    Sectioned,
    access_options,
    bounds_options,
    memory_options,
    model_options,
    option,
    section,
    tokens_of,
)
from wmrt.core.errors import UsageError

_MODULES = (
    *("fastapi", "uvicorn", "websockets", "msgspec", "pydantic_settings", "structlog"),
    "prometheus_client",
)
_TOKENS = ("token", "operator_token", "metrics_token")


@click.command(
    cls=Sectioned,
    epilog="Clients send the robot's name in the header x-session-id, as `wmrt.client` does. "
    "SIGHUP replaces the replicas one by one, for a new model. Tokens come from files, or from "
    "WMRT_SERVE_TOKEN, WMRT_SERVE_OPERATOR_TOKEN and WMRT_SERVE_METRICS_TOKEN. "
    "Example: wmrt fleet --replicas 3 --robots 8 --recipe nvfp4 --snapshots /var/lib/wmrt",
)
@section(
    "Fleet",
    option("--replicas", type=int, help="Processes. Default: 2."),
    option(
        "--proxy",
        type=click.Choice(["haproxy", "ray"]),
        default="haproxy",
        show_default=True,
        help="Before the replicas.",
    ),
    option("--status", is_flag=True, help="Say where each robot is, and end."),
    option("--seats", hidden=True),
)
@memory_options("1, what a kill loses", DRAIN, required=True)
@model_options
@access_options(socket=False)
@bounds_options
@json_option
def command(
    json_path: Path | None,
    token_file: Path | None,
    operator_token_file: Path | None,
    metrics_token_file: Path | None,
    status: bool,
    proxy: str,
    **given: Any,
) -> None:
    """Serve a model to many robots from several processes, until SIGTERM or Ctrl-C.

    Each replica is a `wmrt serve` for --robots robots; Ray Serve routes a robot to its replica,
    and replaces one that dies. On this machine; for a cluster, deploy
    wmrt.service.fleet:application.
    """
    if status:
        _status(given["snapshots"], json_path)
        return
    from wmrt.core.extras import require

    given["names"] = given["names"] or None
    for module in _MODULES:
        require(module, "fleet")
    tokens = tokens_of(
        token=token_file, operator_token=operator_token_file, metrics_token=metrics_token_file
    )
    for name, token in tokens.items():
        if token is not None:  # replicas inherit it; Ray keeps what they are given as arguments
            os.environ[f"WMRT_SERVE_{name.upper()}"] = token
    from wmrt.service.fleet_ray import prepare_environment

    fleet, settings = _read(given)  # told whether or not Ray is there
    with tempfile.TemporaryDirectory(prefix="wmrt-fleet-") as folder:
        haproxy = None
        if proxy == "haproxy":
            from wmrt.service.fleet_haproxy import environment

            haproxy = environment(Path(folder))
        prepare_environment(haproxy)
        require("ray", "fleet")
        _run(given, fleet, settings, json_path)


def _read(given: dict[str, Any]) -> tuple[Any, Any]:
    """The fleet, and the settings of its replicas; the address can be had."""
    from wmrt.service.fleet import read_fleet, replica_settings
    from wmrt.service.server import listening

    fleet, values = read_fleet(given)
    settings = replica_settings(values)
    if settings.tcp_port == 0:
        raise UsageError("port 0: the proxy of a fleet takes a port of its own, such as 8420")
    with listening(settings):
        pass
    return fleet, settings


def _status(folder: Path, json_path: Path | None) -> None:
    from wmrt.service.fleet_status import where

    rows = where(folder)
    table = Table("robot", "state", "owner", "token", "epoch", "sequence", "breakers", "fault")
    for row in rows:
        shown = (row[str(column.header)] for column in table.columns)
        table.add_row(*("" if value is None else str(value) for value in shown))
    console().print(table)
    write_result(json_path, {"robots": rows})


def _run(given: dict[str, Any], fleet: Any, settings: Any, json_path: Path | None) -> None:
    from wmrt.service.fleet import NAME, application
    from wmrt.service.fleet_ray import Cluster
    from wmrt.service.fleet_status import where

    port = settings.tcp_port
    given.update({name: getattr(settings, name) is not None for name in _TOKENS})
    tls = (_text(settings.tls_cert), _text(settings.tls_key))
    cluster = Cluster(settings.host, port, fleet.replicas, tls)
    stopped, generation = _Signals(), 0  # after Ray, which sets its own
    try:
        while stopped.by is None:
            cluster.deploy(application({**given, "generation": generation}), NAME)
            _say(settings, port, fleet)
            stopped.wait()
            generation += 1
    finally:
        cluster.stop()
    results = {"replicas": fleet.replicas, "generations": generation}
    write_result(
        json_path,
        {**results, "robots": where(settings.snapshots)},
        device=settings.device,
        model=settings.model if fleet.seats is None else None,
        recipe=settings.recipe,
    )
    if stopped.by == signal.SIGINT:
        raise KeyboardInterrupt


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _say(settings: Any, port: int, fleet: Any) -> None:
    scheme = "ws" if settings.tls_cert is None else "wss"
    said = f"serving on {scheme}://{settings.host}:{port}, {fleet.replicas} replicas"
    console(stderr=True).print(said, markup=False, soft_wrap=True)


class _Signals:
    """What people and service managers send. ``by``: the signal that ends it, once one came."""

    def __init__(self) -> None:
        self.by: int | None = None
        self._event = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._came)

    def _came(self, number: int, frame: object) -> None:
        if number != signal.SIGHUP:
            self.by = number
        self._event.set()

    def wait(self) -> None:
        """Until the next signal."""
        self._event.wait()
        self._event.clear()
