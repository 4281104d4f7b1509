"""The ``wmrt`` command. A verb is one line in `VERBS` and a module with a ``command``.

This module and everything it imports must stay light: ``wmrt --help`` loads no torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword

import click

from wmrt import __version__
from wmrt.core import memory
from wmrt.core.errors import WmrtError

#: Verb to its line in ``wmrt --help``. The verb's module is ``wmrt.cli.<verb>``, with an underscore
#: after it where Python takes the word for itself.
VERBS = {
    "drive": "Drive a simulated car with a world model and show what it did and how fast.",
    "replay": "Make the decisions of a recorded drive again, and compare them bit for bit.",
    "collect": "Record driving episodes to learn from.",
    "train": "Train a world model on recorded episodes.",
    "calibrate": "Calibrate the prediction monitor of a model on recorded episodes.",
    "grow": "Expand a trained checkpoint into a larger network that drives the same.",
    "quantize": "Store a checkpoint's weights in 4 bits.",
    "export": "Write a packed checkpoint for other tools, or GPU kernels.",
    "import": "Read packed weights of other tools into a checkpoint.",
    "inspect": "Show what a checkpoint holds, and where its bytes go.",
    "gates": "Judge a recipe: execution, quality, capacity, speed.",
    "bench": "Measure a step: latency, jitter, the memory floor, cold start, memory.",
    "serve": "Serve a model to robots over a network, breakers on.",
    "fleet": "Serve a model to many robots from several processes, on Ray Serve.",
    "init": "Write a checkpoint of random weights, for speed and memory.",
    "doctor": "Show what this machine and this installation have, and what is missing.",
}

OK, FALLS_SHORT, USAGE, INTERRUPTED = 0, 1, 2, 130


class VerbGroup(click.Group):
    """Imports a verb's module when the verb is asked for, and lists all of them without."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            raise click.UsageError(f"no verb {cmd_name!r}; there are {', '.join(VERBS)}", ctx)
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = import_module(f"wmrt.cli.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=VerbGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 done, 1 the result falls short, 2 the request or its input is wrong, "
    "130 interrupted by Ctrl-C. "
    "Example: wmrt drive --recipe nvfp4 --episodes 3 --out out/drive",
)
@click.version_option(__version__, prog_name="wmrt", message="%(prog)s %(version)s")
def cli() -> None:
    """Run a quantized world model inside a robot's control loop."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status.

    A request that is wrong, or an input that is, ends in one line on stderr and status 2. Anything
    else that escapes is a fault of wmrt and keeps its traceback; WMRT_TRACEBACK=1 keeps them all.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with memory.told(f"wmrt {' '.join(arguments[:1])}".strip()):
            status = cli.main(arguments, prog_name="wmrt", standalone_mode=False, obj=arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        return _complain("wmrt", "interrupted", INTERRUPTED)
    except (click.ClickException, WmrtError, OSError) as error:
        if os.environ.get("WMRT_TRACEBACK") == "1":
            raise
        return _complain(*_describe(error), USAGE)
    return status if isinstance(status, int) else OK


def _describe(error: Exception) -> tuple[str, str]:
    """The command that complains, and what about."""
    if not isinstance(error, click.ClickException):
        if isinstance(error, OSError) and error.strerror:  # without its number
            where = "" if error.filename is None else f"{error.filename!r}: "
            return "wmrt", where + error.strerror
        return "wmrt", str(error) or type(error).__name__
    context = getattr(error, "ctx", None)
    path = "wmrt" if context is None else context.command_path
    return path, f"{error.format_message().rstrip('.')} (see {path} --help)"


def _complain(who: str, what: str, status: int) -> int:
    click.echo(f"{who}: error: {' '.join(what.split())}", err=True)
    return status
