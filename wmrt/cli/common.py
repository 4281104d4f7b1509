"""What the verbs share: where results go, progress bars, the exit for a result that falls short.

A verb raises `wmrt.core.errors.WmrtError` (or a click error) for anything its user did wrong;
`wmrt.cli.main.main` turns it into one line and exit status 2.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from wmrt import __version__
from wmrt.core import machine
from wmrt.core.errors import UsageError
from wmrt.core.files import replacing, require_writable

T = TypeVar("T")
#: In the help of verbs whose model may vote with another, and what that may be.
SECOND_OPINION = "Second opinion that votes with the model"
SECONDS = "a recipe of the model, an earlier checkpoint, or auto (bf16, or nvfp4 beside bf16)"


def ignore_hangup() -> None:
    """Outlive SIGHUP until there is something to do with it: unhandled, it would end the process
    while a model loads."""
    if threading.current_thread() is threading.main_thread():  # others may not set it
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds ``--json FILE``; the verb receives ``json_path: Path | None`` for `write_result`.

    A file that cannot be written, or whose folder is not there, is told before the work.
    """
    option = click.option(
        "--json",
        "json_path",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        callback=_check_file,
        help="Write the results to FILE as JSON; its folder has to be there.",
    )
    return option(function)


def out_option(*, beside: bool = False, **settings: Any) -> Callable[..., Callable[..., Any]]:
    """Adds ``--out DIR``, made if it is not there; the verb receives ``out: Path``.

    A place that cannot be written is told before the work.

    Args:
        beside: the verb writes beside DIR and renames, as checkpoints are saved.
        settings: of `click.option`.
    """

    def check(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
        if path is not None:
            _check_folder(path.absolute().parent if beside else path)
        return path

    return click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        callback=check,
        **settings,
    )


def _check_folder(folder: Path) -> None:
    try:
        require_writable(folder)
    except UsageError as error:
        raise click.BadParameter(str(error)) from None


def _check_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    if path is None:
        return None
    if not path.parent.is_dir():
        raise click.BadParameter(f"{path}: there is no folder {path.parent}; make it first")
    if path.exists() and not path.is_file():
        raise click.BadParameter(f"{path} is there and is no file")
    _check_folder(path.parent)
    return path


#: Columns of output that is no terminal's.
UNBOUNDED = 160


def console(stderr: bool = False) -> Console:
    """Where tables (stdout) and notes (stderr) go; plain text when it is no terminal, and wide
    enough then for every table (COLUMNS says otherwise): a file has no edge to break lines at."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = UNBOUNDED
    return made


def progress(auto_refresh: bool = True) -> Progress:
    """A display on stderr: ``with progress() as bar: bar.add_task("driving", total=n)``. Without
    ``auto_refresh`` no thread draws it: ``bar.refresh()`` does."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console(stderr=True),
        auto_refresh=auto_refresh,
    )


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """``items``, with a progress bar of its own; ``total`` when they have no length."""
    with progress() as bar:
        yield from bar.track(items, total=total, description=description)


def falls_short(reason: str) -> NoReturn:
    """Say why the result is not good enough, and end with status 1. Write the results first."""
    console(stderr=True).print(f"falls short: {reason}", markup=False, soft_wrap=True)
    click.get_current_context().exit(1)


def write_result(
    path: Path | None,
    results: Mapping[str, Any],
    *,
    device: str = "cpu",
    model: str | None = None,
    model_sha256: str | None = None,
    recipe: str | None = None,
    resolved: Mapping[str, Any] | None = None,
) -> None:
    """Write the result file of ``--json``; nothing if ``path`` is None.

    Args:
        path: written whole or not at all; `UsageError` if it cannot be.
        results: JSON data, dataclasses, enums, paths, NumPy or torch values. A figure that is
            missing is None: a NaN or an infinity is refused with its place.
        device: torch device that ran the model; a CUDA device is recorded with its name.
        model: checkpoint name or path as asked for. model_sha256: root hash of its weights.
        recipe: as asked for. resolved: what ran instead of, or in detail of, what was asked for.
    """
    if path is None:
        return
    made_by = identity(
        device=device,
        model=model,
        model_sha256=model_sha256,
        recipe=recipe,
        resolved=resolved,
    )
    write_document(path, _command(), made_by, results)


def identity(
    *,
    device: str = "cpu",
    model: str | None = None,
    model_sha256: str | None = None,
    recipe: str | None = None,
    resolved: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a result file says about machine, versions and commit; arguments as of
    `write_result`."""
    return {
        "device": _device_name(device),
        "cpu": machine.cpu_name(),
        "threads": _threads(),
        "torch": _version("torch"),
        "triton": _version("triton"),
        "model": model,
        "model_sha256": model_sha256,
        "recipe": recipe,
        "resolved": dict(resolved or {}),
        "commit": machine.source_commit(),
    }


def write_document(
    path: Path, command: list[str], identity: Mapping[str, Any], results: Mapping[str, Any]
) -> None:
    """A result file; written whole or not at all, `UsageError` if it cannot be."""
    document = {
        "wmrt": __version__,
        "command": command,
        "identity": plain(identity, "identity"),
        "results": plain(results, "results"),
    }
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", "utf-8")


def plain(value: Any, place: str) -> Any:
    """``value`` as JSON data.

    Raises ValueError, naming the place, on NaN, infinity and types without a JSON form.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{place} is {value}; a missing figure is None")
        return float(value)
    if isinstance(value, Mapping):
        named = {k.value if isinstance(k, Enum) else k: item for k, item in value.items()}
        return {str(key): plain(item, f"{place}.{key}") for key, item in named.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), f"{place}.{f.name}") for f in fields(value)}
    if isinstance(value, Enum):
        return plain(value.value, place)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # a NumPy or torch scalar or array, of which neither is imported
        return plain(value.tolist(), place)
    raise ValueError(f"{place} is a {type(value).__name__}, which has no JSON form")


def _command() -> list[str]:
    """The command line that is running: the one `main` was given, or a tool's own."""
    context = click.get_current_context(silent=True)
    given = context.find_root().obj if context is not None else None
    if isinstance(given, list):
        return ["wmrt", *given]
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = ["-m", module.name] if module is not None else [Path(sys.argv[0]).name]
    return ["python", *program, *sys.argv[1:]]


def _version(package: str) -> str | None:
    """Version of the package as loaded, else as installed, else None; never imports it."""
    loaded = getattr(sys.modules.get(package), "__version__", None)
    return str(loaded) if loaded is not None else machine.installed_version(package)


def _threads() -> int | None:
    """Threads torch computes with; None if this run did not use torch."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _device_name(device: str) -> str:
    torch = sys.modules.get("torch")
    if not device.startswith("cuda") or torch is None:
        return device
    return f"{device} ({torch.cuda.get_device_name(device)})"
