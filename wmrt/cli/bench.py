"""``wmrt bench``: how long a step takes, how steadily, and how near to what memory allows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wmrt.cli.common import json_option, out_option
from wmrt.core import machine

if TYPE_CHECKING:
    from wmrt.cli.benching.request import Request


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """``1,2,4`` as numbers."""
    try:
        return tuple(dict.fromkeys(int(part) for part in value.split(",")))
    except ValueError:
        raise click.BadParameter(f"{value!r}: whole numbers with commas between them") from None


_ABOVE_0 = click.FloatRange(0, min_open=True)


@click.command(
    epilog="Example: wmrt bench --preset small --recipe nvfp4 --rate 100 --out out/bench"
)
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--preset",
    type=click.Choice(["1.3b", "small", "mini", "tiny"]),
    help="Random weights of this size instead of a model, for speed only; made once and kept.",
)
@click.option(
    "--recipe",
    "recipes",
    multiple=True,
    metavar="RECIPE",
    help="nvfp4, mxfp4, w4a8, bf16, ...; may be given again. Default: nvfp4, or what is stored.",
)
@click.option(
    "--executor",
    "executors",
    multiple=True,
    type=click.Choice(["auto", "native", "triton", "eager"]),
    default=("auto",),
    show_default=True,
    help="May be given again; eager beside native is the control arm.",
)
@click.option(
    "--pages",
    multiple=True,
    type=click.Choice(["auto", "mapped", "huge"]),
    default=("auto",),
    show_default=True,
    help="Where the native executor's weights lie; may be given again.",
)
@click.option(
    "--threads",
    multiple=True,
    type=click.IntRange(1),
    help="May be given again. Default: every physical core this process may use.",
)
@click.option(
    "--batch",
    "batches",
    default="1",
    show_default=True,
    callback=_numbers,
    metavar="N,N,...",
    help="Robots per step.",
)
@click.option("--steps", type=click.IntRange(1), help="Recorded steps per arm. Default: by time.")
@click.option(
    "--seconds",
    type=_ABOVE_0,
    default=10.0,
    show_default=True,
    help="Time per arm, where --steps is not given.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Turns of every arm: A B A B.",
)
@click.option(
    "--rate", type=_ABOVE_0, metavar="HZ", help="Step at this rate too, beside back to back."
)
@click.option(
    "--deadline",
    type=_ABOVE_0,
    metavar="MS",
    help="From tick to answer; a step that misses it fails the run. Default: count the period's.",
)
@click.option(
    "--max-ratio", type=_ABOVE_0, metavar="X", help="Fail above so many times the memory floor."
)
@click.option("--device", default="cpu", show_default=True, metavar="DEVICE")
@click.option(
    "--isolate", is_flag=True, help="Affinity, SCHED_FIFO and locked memory, where allowed."
)
@click.option(
    "--peers", is_flag=True, help="Other libraries side by side: pip install 'wmrt[peers]'."
)
@click.option("--no-cold", is_flag=True, help="Leave out the cold starts.")
@click.option("--no-memory", is_flag=True, help="Leave out resident memory.")
@click.option(
    "--flat",
    type=click.IntRange(80),
    metavar="STEPS",
    help="Watch memory over so many steps, and over as many with a planted leak.",
)
@out_option(help="Write report.html there.")
@json_option
def command(
    steps: int | None,
    seconds: float,
    rounds: int,
    out: Path | None,
    json_path: Path | None,
    **options: Any,
) -> None:
    """Measure the control step of MODEL (a packaged name, a folder, or owner/name; default:
    highway): latency and jitter, against the memory floor measured in the same run, cold starts,
    and memory.

    Arms take turns in rounds. A noisy run says so and passes no gate. Ends with status 1 if
    --deadline or --max-ratio was given and is not kept.
    """
    from wmrt.cli.benching.request import check
    from wmrt.cli.benching.run import run
    from wmrt.runtime.bench.rounds import Effort

    run(check(_request(**options)), Effort(rounds, steps, seconds), out, json_path)


def _request(
    *,
    threads: tuple[int, ...],
    rate: float | None,
    deadline: float | None,
    no_cold: bool,
    no_memory: bool,
    flat: int | None,
    **same: Any,
) -> Request:
    """The options as one request."""
    from wmrt.cli.benching.request import Request
    from wmrt.core.pace import rate_of

    return Request(
        threads=tuple(dict.fromkeys(threads)) or (len(machine.physical_cpus()),),
        rates=(None,) if rate is None else (None, rate_of(rate)),
        deadline_ms=deadline,
        cold=not no_cold,
        resident=not no_memory,
        flat=flat or 0,
        **{key: _once(value) for key, value in same.items()},
    )


def _once(value: Any) -> Any:
    """Options that may be given again, each once."""
    return tuple(dict.fromkeys(value)) if isinstance(value, tuple) else value
