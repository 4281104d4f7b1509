"""``wmrt serve``: a model behind a network, for one robot or up to 16."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import console, json_option, write_result

_FILE = click.Path(dir_okay=False, path_type=Path)


def model_options(function: Any) -> Any:
    """Options of what is served."""
    for option in (
        click.option(
            "--model",
            metavar="NAME",
            help="A packaged checkpoint, a folder, or owner/name. Default: highway.",
        ),
        click.option("--recipe", metavar="RECIPE", help="bf16, nvfp4, mxfp4, w4a8, ..."),
        click.option("--device", metavar="DEVICE", help="Default: cpu."),
        click.option("--executor", type=click.Choice(["auto", "native", "triton", "eager"])),
        click.option("--threads", type=int, help="That step the model."),
        click.option(
            "--robots",
            type=int,
            help="How many share it, 1 to 16. Default: 1, a replica of a fleet 16.",
        ),
        click.option("--period", type=float, help="Of the control loop, s. Default: the model's."),
        click.option(
            "--resample", type=click.Choice(["linear"]), help="Run faster than the model."
        ),
        click.option("--deadline", type=float, help="Of a step, seconds. Default: the period."),
        click.option("--max-age", type=float, help="Seconds an observation may be old."),
        click.option(
            "--clock",
            type=click.Choice(["system", "step"]),
            help="step: for simulators that do not run in real time. Default: system.",
        ),
    ):
        function = option(function)
    return function


def access_options(socket: bool) -> Callable[[Any], Any]:
    """Options of who reaches a service; ``socket``: it may have a Unix socket."""

    def add(function: Any) -> Any:
        for option in _SOCKET * socket + _ACCESS:
            function = option(function)
        return function

    return add


_SOCKET = (click.option("--socket", type=_FILE, help="Unix socket, its owner's alone."),)
_ACCESS = (
    click.option("--host", help="Default: 127.0.0.1."),
    click.option("--port", type=int, help="Default: 8420, none with --socket."),
    click.option("--open", is_flag=True, default=None, help="Let --host be a public one."),
    click.option("--name", "names", multiple=True, help="This host's further names."),
    click.option("--token-file", type=_FILE, help="Bearer token of the clients."),
    click.option("--operator-token-file", type=_FILE, help="That of who resets breakers."),
    click.option("--metrics-token-file", type=_FILE, help="One for /metrics alone."),
    click.option("--tls-cert", type=_FILE, help="PEM."),
    click.option("--tls-key", type=_FILE, help="PEM."),
    click.option(
        "--on-second-client",
        type=click.Choice(["refuse", "takeover"]),
        help="For a robot that another client holds. Default: refuse.",
    ),
    click.option("--rate", type=float, help="Messages a second by connection. Default: 2000."),
    click.option("--connections", type=int, help="At one time. Default: 256."),
    click.option("--max-body", type=int, help="Bytes of a message. Default: 128 KiB."),
    click.option("--audit", type=_FILE, help="Append who did what, as JSON lines."),
    click.option("--log-format", type=click.Choice(["text", "json"]), help="Default: text."),
    click.option("--otel/--no-otel", default=None, help="Traces; default: if OTEL_... asks."),
    click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"])),
)


def _keeping_options(function: Any) -> Any:
    for option in (
        click.option(
            "--snapshots",
            type=click.Path(file_okay=False, path_type=Path),
            help="Folder of the robots' memories; a session goes on from there.",
        ),
        click.option("--snapshot-every", type=float, help="Seconds; 0: on stop. Default: 5."),
        click.option(
            "--shared", is_flag=True, default=None, help="Other services use --snapshots too."
        ),
        click.option("--cpu", type=int, help="Of the inference thread; -1: any. Default: last."),
        click.option("--priority", type=int, help="Its SCHED_FIFO priority. Default: none."),
        click.option("--stuck-after", type=float, help="Seconds of one step. Default: 10."),
        click.option("--drain", type=float, help="Seconds for steps in work on stop. Default: 5."),
    ):
        function = option(function)
    return function


@click.command(
    epilog="Tokens come from files, or from WMRT_SERVE_TOKEN, WMRT_SERVE_OPERATOR_TOKEN and "
    "WMRT_SERVE_METRICS_TOKEN, and every other setting from WMRT_SERVE_... where its option is not "
    "given. Example: wmrt serve --recipe nvfp4 --socket /run/wmrt.sock --snapshots /var/lib/wmrt"
)
@model_options
@access_options(socket=True)
@_keeping_options
@json_option
def command(
    json_path: Path | None,
    token_file: Path | None,
    operator_token_file: Path | None,
    metrics_token_file: Path | None,
    **given: Any,
) -> None:
    """Serve a model to robots over a network, breakers on, until SIGTERM or Ctrl-C.

    /v1/stream is the WebSocket that `wmrt.client` speaks, /openapi.json describes the rest.
    """
    from wmrt.core.extras import require

    for module in (
        "fastapi",
        "uvicorn",
        "httptools",
        "websockets",
        "msgspec",
        "pydantic_settings",
        "structlog",
        "prometheus_client",
    ):
        require(module, "service")
    from wmrt.service.settings import read_settings, unknown_names

    given["names"] = given["names"] or None
    given["token"] = token_of(token_file)
    given["operator_token"] = token_of(operator_token_file)
    given["metrics_token"] = token_of(metrics_token_file)
    for name in unknown_names(os.environ):  # other software may set such names, so no error
        console(stderr=True).print(f"{name} is no setting; it is ignored", markup=False)
    _serve(read_settings(**given), json_path)


def token_of(path: Path | None) -> str | None:
    """A token from a file; OSError is told by `main`."""
    return None if path is None else path.read_text("utf-8", "replace").strip()


def _serve(settings: Any, json_path: Path | None) -> None:
    from wmrt.service import operations
    from wmrt.service.crew import load_crew
    from wmrt.service.logs import logs_of
    from wmrt.service.server import Server, addresses, listening
    from wmrt.service.telemetry import telemetry_of

    # An address or a package that cannot be had is told before the work.
    with (
        listening(settings) as sockets,
        contextlib.closing(telemetry_of(settings)) as telemetry,
        logs_of(settings).installed() as logs,
    ):
        crew = load_crew(settings)
        server = Server(crew, settings, dropped=lambda: logs.dropped, telemetry=telemetry)
        for address in addresses(sockets, settings):
            console(stderr=True).print(f"serving on {address}", markup=False, soft_wrap=True)
        server.run_on(sockets)
    described = server.host.crew.described
    write_result(
        json_path,
        operations.info(server.host),
        device=settings.device,
        model=settings.model,
        model_sha256=described["model_sha256"],
        recipe=described["recipe"],
        resolved=described["resolved"],
    )
    if server.stopped_by == signal.SIGINT:
        raise KeyboardInterrupt
