"""``wmrt serve``: a model behind a network, for one robot or up to 16."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import console, ignore_hangup, json_option, write_result
from wmrt.cli.service_options import (
    SHARED,
    Sectioned,
    access_options,
    bounds_options,
    consensus_options,
    memory_options,
    model_options,
    process_options,
    tokens_of,
    warn_of_unknown_names,
)


@click.command(
    cls=Sectioned,
    epilog="Tokens come from files, or from WMRT_SERVE_TOKEN, WMRT_SERVE_OPERATOR_TOKEN and "
    "WMRT_SERVE_METRICS_TOKEN, and every other setting from WMRT_SERVE_... where its option is not "
    "given. Example: wmrt serve --recipe nvfp4 --socket /run/wmrt.sock --snapshots /var/lib/wmrt",
)
@model_options
@consensus_options
@access_options(socket=True)
@memory_options("5", SHARED)
@process_options
@bounds_options
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
    ignore_hangup()  # until the event loop runs
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
    from wmrt.service.settings import read_settings

    given["names"] = given["names"] or None
    given |= tokens_of(
        token=token_file, operator_token=operator_token_file, metrics_token=metrics_token_file
    )
    warn_of_unknown_names()
    _serve(read_settings(**given), json_path)


def _serve(settings: Any, json_path: Path | None) -> None:
    from wmrt.core import memory

    memory.steady_heap()  # before there are threads
    from wmrt.service import operations
    from wmrt.service.audit import audit_of
    from wmrt.service.crew import load_crew
    from wmrt.service.logs import logs_of
    from wmrt.service.server import Server, addresses, listening
    from wmrt.service.telemetry import telemetry_of

    # An address, a package or a file that cannot be had is told before the work.
    with (
        listening(settings) as sockets,
        contextlib.closing(telemetry_of(settings)) as telemetry,
        logs_of(settings).installed() as logs,
        contextlib.closing(audit_of(settings)) as audit,
    ):
        crew = load_crew(settings)
        server = Server(crew, settings, None, lambda: logs.dropped, telemetry, audit)
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
