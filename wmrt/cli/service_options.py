"""Options of `wmrt serve` and `wmrt fleet`, in the sections that their help shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import SECOND_OPINION, SECONDS, console
from wmrt.core.errors import UsageError

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
Decorator = Callable[[Any], Any]


class _Option(click.Option):
    """An option with the name of its section."""

    def __init__(self, *names: Any, section: str, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


class Sectioned(click.Command):
    """A verb with many options: its help shows them by section, in the order they are given."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(option, "section", "Other"), []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def section(name: str, *options: tuple[tuple[str, ...], dict[str, Any]]) -> Decorator:
    """Adds options, each (names, settings), in this order."""

    def add(function: Any) -> Any:
        for names, settings in reversed(options):
            function = click.option(*names, cls=_Option, section=name, **settings)(function)
        return function

    return add


def option(*names: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """One of a `section`; ``settings`` as of `click.option`."""
    return names, settings


def chain(*decorators: Decorator) -> Decorator:
    """All of them, in the order in which help shows them."""

    def add(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


model_options = chain(
    section(
        "Model",
        option(
            "--model",
            metavar="NAME",
            help="A packaged checkpoint, a folder, or owner/name. Default: highway.",
        ),
        option("--recipe", metavar="RECIPE", help="bf16, nvfp4, mxfp4, w4a8, ..."),
        option("--device", metavar="DEVICE", help="Default: cpu."),
        option(
            "--executor",
            type=click.Choice(["auto", "native", "triton", "eager"]),
            help="What steps it. Default: auto.",
        ),
        option("--threads", type=int, help="That step the model."),
        option(
            "--robots",
            type=int,
            help="How many share it, 1 to 16. Default: 1, a replica of a fleet 16.",
        ),
    ),
    section(
        "Control loop",
        option("--period", type=float, help="Seconds. Default: the model's."),
        option("--resample", type=click.Choice(["linear"]), help="Run faster than the model."),
        option("--deadline", type=float, help="Of a step, seconds. Default: the period."),
        option("--max-age", type=float, help="Seconds an observation may be old. Default: any."),
        option(
            "--clock",
            type=click.Choice(["system", "step"]),
            help="step: for simulators that do not run in real time. Default: system.",
        ),
    ),
)

consensus_options = section(
    "Consensus",
    option(
        "--consensus",
        metavar="SECOND",
        help=f"{SECOND_OPINION} and a rule, 2 of 3: {SECONDS}. Default: none.",
    ),
    option(
        "--consensus-rule",
        metavar="RULE",
        help="The third: hold, or module:function, (state, previous action) -> action.",
    ),
    option("--consensus-every", type=int, help="Vote every so many steps. Default: 1."),
)

_SOCKET = option("--socket", type=_FILE, help="Unix socket, its owner's alone.")
_ADDRESS = (
    option("--host", help="Default: 127.0.0.1."),
    option("--port", type=int, help="Default: 8420, none with --socket."),
    option("--open", is_flag=True, default=None, help="Let --host be a public one; takes a token."),
    option("--name", "names", multiple=True, help="This host's further names."),
    option("--tls-cert", type=_FILE, help="Certificate, and those up to its authority; PEM."),
    option("--tls-key", type=_FILE, help="Its key; PEM."),
)
_access = section(
    "Access",
    option("--token-file", type=_FILE, help="Bearer token of the clients."),
    option("--operator-token-file", type=_FILE, help="That of who resets breakers."),
    option("--metrics-token-file", type=_FILE, help="One for /metrics alone."),
    option(
        "--on-second-client",
        type=click.Choice(["refuse", "takeover"]),
        help="For a robot that another client holds. Default: refuse.",
    ),
    option("--audit", type=_FILE, help="Append who did what, as JSON lines."),
)


def access_options(socket: bool) -> Decorator:
    """Options of who reaches a service; ``socket``: it may have a Unix socket."""
    address = section("Address", *((_SOCKET,) if socket else ()), *_ADDRESS)
    return chain(address, _access)


def memory_options(every: str, *more: Any) -> Decorator:
    """Options of snapshots; ``every``: the default of --snapshot-every."""
    return section(
        "Memory",
        option(
            "--snapshots",
            type=_FOLDER,
            help="Folder of the robots' memories; a session goes on from there.",
        ),
        option("--snapshot-every", type=float, help=f"Seconds; 0: on stop. Default: {every}."),
        *more,
    )


SHARED = option("--shared", is_flag=True, default=None, help="Other services use --snapshots too.")
DRAIN = option("--drain", type=float, help="Seconds for steps in work on stop. Default: 5.")
process_options = section(
    "Process",
    option(
        "--cpu",
        type=int,
        help="Processor of the inference thread, -1 for any. Default: the last one.",
    ),
    option("--priority", type=int, help="Its SCHED_FIFO priority, 1 to 99. Default: none."),
    option("--spin", type=float, help="Microseconds it looks for the next message, then sleeps."),
    option("--stuck-after", type=float, help="Seconds of one step. Default: 10."),
    DRAIN,
)


bounds_options = chain(
    section(
        "Limits",
        option("--rate", type=float, help="Messages a second by connection. Default: 2000."),
        option("--connections", type=int, help="At one time. Default: 256."),
        option("--max-body", type=int, help="Bytes of a message. Default: 128 KiB."),
    ),
    section(
        "Logs",
        option("--log-format", type=click.Choice(["text", "json"]), help="Default: text."),
        option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            help="Default: info.",
        ),
        option("--otel/--no-otel", default=None, help="Traces; default: if OTEL_... asks."),
    ),
)


def warn_of_unknown_names() -> None:
    """Tell of WMRT_SERVE_... in the environment that is no setting. Other software may set such
    names, so it is no error."""
    from wmrt.service.settings import unknown_names

    for name in unknown_names(os.environ):
        console(stderr=True).print(f"{name} is no setting; it is ignored", markup=False)


def tokens_of(**files: Path | None) -> dict[str, str | None]:
    """Tokens by the name of their setting, from files by the same names.

    Raises:
        UsageError: a file that cannot be read, or holds no token; it names the option and the file.
    """
    return {name: _token_of(name, path) for name, path in files.items()}


def _token_of(name: str, path: Path | None) -> str | None:
    from wmrt.service.settings import token_fault

    if path is None:
        return None
    where = f"--{name.replace('_', '-')}-file {path}"
    try:
        text = path.read_text("utf-8", "replace").strip()
    except OSError as error:
        raise UsageError(
            f"{where}: {error.strerror or error}; it is a file with the token in one line, which "
            "whoever runs this has to be allowed to read"
        ) from None
    if fault := token_fault(text):
        raise UsageError(f"{where}: {fault}")
    return text
