"""``wmrt fleet``: several processes of `wmrt serve` on Ray Serve, for a fleet of robots."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from wmrt.cli.common import console, ignore_hangup, json_option, write_result
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
    warn_of_unknown_names,
)
from wmrt.core.errors import UsageError, WmrtError

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
@memory_options("1, what a kill loses", DRAIN)
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
    ignore_hangup()  # until there is a fleet
    from wmrt.core.extras import require

    given["names"] = given["names"] or None
    for module in _MODULES:
        require(module, "fleet")
    warn_of_unknown_names()
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

            haproxy = environment(Path(folder), settings)
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


def _status(folder: Path | None, json_path: Path | None) -> None:
    from wmrt.service.fleet_status import where

    named = os.environ.get("WMRT_SERVE_SNAPSHOTS")
    if folder is None and not named:
        raise UsageError("--status: --snapshots, or WMRT_SERVE_SNAPSHOTS, says which fleet's")
    rows = where(folder or Path(str(named)))
    table = Table("robot", "state", "owner", "token", "epoch", "sequence", "breakers", "fault")
    for row in rows:
        shown = (row[str(column.header)] for column in table.columns)
        table.add_row(*("" if value is None else str(value) for value in shown))
    console().print(table)
    write_result(json_path, {"robots": rows})


def _run(given: dict[str, Any], fleet: Any, settings: Any, json_path: Path | None) -> None:
    from wmrt.service.fleet_ray import Cluster
    from wmrt.service.fleet_status import where

    given.update({name: getattr(settings, name) is not None for name in _TOKENS})
    tls = (_text(settings.tls_cert), _text(settings.tls_key))
    cluster = Cluster(settings.host, settings.tcp_port, fleet.replicas, tls)
    signals = _Signals()  # after Ray, which sets its own
    try:
        generations = _serve(given, cluster, signals, fleet, settings)
    finally:
        cluster.stop()
    robots = where(settings.snapshots) if settings.snapshots.is_dir() else []
    write_result(
        json_path,
        {"replicas": fleet.replicas, "generations": generations, "robots": robots},
        device=settings.device,
        model=settings.model if fleet.seats is None else None,
        recipe=settings.recipe,
    )
    if signals.by == signal.SIGINT:
        raise KeyboardInterrupt


def _serve(
    given: dict[str, Any], cluster: Any, signals: _Signals, fleet: Any, settings: Any
) -> int:
    """Deploy, and again at every SIGHUP, until another signal; how many became ready.

    Raises:
        WmrtError: the first did not. Those after it may fail: Ray replaces one replica after
            the other, and leaves those that it has not come to.
    """
    from wmrt.service.fleet import NAME, application

    generation = ready = 0
    while signals.by is None:
        try:
            with signals.interrupting():
                cluster.deploy(application({**given, "generation": generation}), NAME)
        except _Stopped:
            break
        except WmrtError as error:
            if not ready:
                raise
            said = f"the new deployment failed: {error}; the old replicas that are left go on"
            console(stderr=True).print(f"{said}; SIGHUP tries again", markup=False, soft_wrap=True)
        else:
            ready += 1
            _say(settings, fleet)
        signals.wait()
        generation += 1
    return ready


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _say(settings: Any, fleet: Any) -> None:
    scheme = "ws" if settings.tls_cert is None else "wss"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    said = f"serving on {scheme}://{host}:{settings.tcp_port}, {fleet.replicas} replicas"
    console(stderr=True).print(said, markup=False, soft_wrap=True)


class _Stopped(BaseException):
    """A signal came that ends the fleet. Not an `Exception`: Ray takes those for failures."""


class _Signals:
    """What people and service managers send. ``by``: the signal that ends it, once one came."""

    def __init__(self) -> None:
        self.by: int | None = None
        self._event = threading.Event()
        self._interrupts = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._came)

    def _came(self, number: int, frame: object) -> None:
        if number != signal.SIGHUP:
            self.by = number
        self._event.set()
        if self._interrupts and self.by is not None:
            self._interrupts = False
            raise _Stopped

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """A block that the end interrupts with `_Stopped`: Ray waits for a model for as long as it
        takes to load, which may be minutes, and for one that hangs for ever."""
        self._interrupts = True
        try:
            if self.by is not None:
                raise _Stopped
            yield
        finally:
            self._interrupts = False

    def wait(self) -> None:
        """Until the next signal."""
        self._event.wait()
        self._event.clear()
