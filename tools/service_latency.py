"""What a service adds to a control step: WebSocket over a Unix socket and over TCP, HTTP, beside a
uvicorn that echoes the same bytes, in turns, on one machine.

    python tools/service_latency.py --json benchmarks/service_latency.json
    python tools/service_latency.py --model highway --recipe nvfp4 --rounds 20

`--control` adds what the service's own mechanisms are compared with: messages that Python reads and
makes, an event loop that reads, a thread that waits for the deadline, messages through a queue and
tasks; and sides that spin, which takes a processor each. `--segments` tells where the time goes.

A round trip ends when the answer has been read into an array. `above_act` is what is left of it
after the service's own control step (breakers included), `above_step` after the policy's step.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from wmrt.cli.common import console, falls_short, json_option, progress, write_result
from wmrt.client import connect
from wmrt.core import measure
from wmrt.core.codec import VARIABLE
from wmrt.core.errors import WmrtError
from wmrt.core.wire import ROBOT_HEADER

#: One sample: round trip, the service's control step, the policy's own step, in nanoseconds; and
#: where its action came from.
Sample = tuple[int, int, int, str]
WARM_UP = 50
#: Seconds that those who spin look for the next message, with `--control`.
SPIN = 0.003


def whole_state(schema: dict[str, Any]) -> dict[str, Any]:
    """A state with every field known, in the middle of its range."""
    state: dict[str, Any] = {}
    for field in schema["fields"]:
        if field["kind"] in ("numeric", "vector"):
            middle = (field["low"] + field["high"]) / 2
            state[field["name"]] = middle if field["kind"] == "numeric" else [middle] * field["n"]
        elif field["kind"] == "category":
            state[field["name"]] = field["values"][0]
        elif field["kind"] == "flag":
            state[field["name"]] = False
    return state


def websocket_arm(
    address: str, robot: str, spin: float = 0.0, codec: str | None = None
) -> Callable[[], Sample]:
    """One step over a WebSocket; ``spin``: of the client, seconds; ``codec``: its own."""
    with environment({} if codec is None else {VARIABLE: codec}):
        client = connect(address, robot, opening=120.0, deadline=10.0, spin=spin)
    state = whole_state(client.schema)

    def step() -> Sample:
        answer = client.act(state)
        return answer.round_trip_ns, answer.act_ns, answer.policy_ns or 0, answer.source

    return step


def http_arm(host: str, port: int, robot: str) -> Callable[[], Sample]:
    """One step over HTTP, JSON both ways, on one connection."""
    connection = http.client.HTTPConnection(host, port, timeout=10.0)

    def ask(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", ROBOT_HEADER: robot}
        connection.request(method, path, content, headers)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer

    state = whole_state(ask("GET", "/v1/schema")["schema"])
    own = ask("POST", "/v1/reset", {"robot": robot})
    message = {"version": 1, **{k: own[k] for k in ("robot", "session", "epoch")}, "state": state}
    sequence = 0

    def step() -> Sample:
        nonlocal sequence
        sequence += 1
        began = time.monotonic_ns()
        answer = ask("POST", "/v1/act", {**message, "sequence": sequence})
        took = time.monotonic_ns() - began
        if answer["kind"] != "action":
            raise WmrtError(f"/v1/act refused: {answer}")
        return took, answer["act_ns"], answer["policy_ns"] or 0, answer["source"]

    return step


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """A block with variables of the environment that are not set outside of it."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]


@contextlib.contextmanager
def process(*arguments: str, **environment: str) -> Iterator[None]:
    """A process of this Python, ended with the block."""
    running = subprocess.Popen([sys.executable, *arguments], env={**os.environ, **environment})
    try:
        yield
    finally:
        running.terminate()
        running.wait(30.0)


def figures(samples: list[Sample]) -> dict[str, Any]:
    """Percentiles in microseconds, and how many actions came from where."""
    parts = {
        "round_trip_us": [trip for trip, _, _, _ in samples],
        "above_act_us": [trip - act for trip, act, _, _ in samples],
        "above_step_us": [trip - policy for trip, _, policy, _ in samples],
    }
    told = {name: measure.summary([ns / 1e3 for ns in values]) for name, values in parts.items()}
    return {**told, "sources": dict(Counter(source for *_, source in samples))}


def others(results: dict[str, dict[str, Any]]) -> list[str]:
    """Arms with steps that were not the policy's: what a blocked step costs is another thing."""
    seen = {arm: found["sources"] for arm, found in results.items()}
    return [f"{arm}: {own}" for arm, own in seen.items() if set(own) - {"policy", "echo"}]


def measured(
    arms: dict[str, Callable[[], Sample]], rounds: int, steps: int
) -> dict[str, list[Sample]]:
    """All arms in turns."""
    samples: dict[str, list[Sample]] = {name: [] for name in arms}
    with progress() as bar:
        task = bar.add_task("asking", total=rounds)
        for arm in arms.values():
            for _ in range(WARM_UP):
                arm()
        for _ in range(rounds):
            for name, arm in arms.items():
                samples[name] += [arm() for _ in range(steps)]
            bar.advance(task)
    return samples


@click.command(epilog="Example: python tools/service_latency.py --rounds 20 --json latency.json")
@click.option("--model", help="Default: a tiny one of random weights.")
@click.option("--recipe", help="As of `wmrt serve`.")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=100, show_default=True, help="A round.")
@click.option("--cpu", type=int, help="Of the inference thread, as of `wmrt serve`.")
@click.option("--control", is_flag=True, help="Also the mechanisms it is compared with.")
@click.option("--segments", is_flag=True, help="Also where the time goes.")
@click.option("--echo", "echo_path", hidden=True)
@click.option("--trace", "trace_folder", hidden=True, type=click.Path(path_type=Path))
@json_option
def command(
    model: str | None,
    recipe: str | None,
    rounds: int,
    steps: int,
    cpu: int | None,
    control: bool,
    segments: bool,
    echo_path: str | None,
    trace_folder: Path | None,
    json_path: Path | None,
) -> None:
    """Measure what a service adds to a control step."""
    settings = {"threads": 1, "recipe": recipe, "cpu": cpu}
    settings["period"] = 0.001 if model is None else None
    given = {name: value for name, value in settings.items() if value is not None}
    if echo_path is not None:
        tracing().echo(echo_path)
    elif trace_folder is not None:
        tracing().serve(trace_folder, **json.loads((trace_folder / "settings").read_text()))
    else:
        compare(model, given, (rounds, steps), control, segments, json_path)


def compare(
    model: str | None,
    settings: dict[str, Any],
    size: tuple[int, int],
    control: bool,
    segments: bool,
    json_path: Path | None,
) -> None:
    """Ask all arms in turns, and tell."""
    rounds, steps = size
    options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        served = tracing().tiny(folder) if model is None else model
        with contextlib.ExitStack() as stack:
            arms = started(stack, folder, [served, *options], control)
            results = {arm: figures(s) for arm, s in measured(arms, rounds, steps).items()}
        (folder / "settings").write_text(json.dumps({"model": served, **settings}))
        codecs = ("auto", "python") if control else ("auto",)
        pieces = {one: traced(folder, one, rounds * steps) for one in codecs} if segments else {}
    show(results, pieces)
    found = {"arms": results, "load_average": os.getloadavg()[0], "rounds": rounds, "steps": steps}
    found["segments_us"] = pieces.get("auto")
    found["segments_us_codec_in_python"] = pieces.get("python")
    named = model or "tiny, random weights"
    write_result(json_path, found, model=named, recipe=settings.get("recipe"))
    if wrong := others(results):
        falls_short(f"actions that were not the policy's: {'; '.join(wrong)}")


def traced(folder: Path, codec: str, steps: int) -> dict[str, Any]:
    """Where the time goes, with a service and a client of the codec."""
    with environment({VARIABLE: codec}):
        with process(__file__, "--trace", str(folder)):
            told = tracing().pieces(folder, whole_state, WARM_UP, steps)
        pieces: dict[str, Any] = told()
    return pieces


def started(
    stack: contextlib.ExitStack, folder: Path, served: list[str], control: bool
) -> dict[str, Callable[[], Sample]]:
    """The processes, and a client for each arm."""
    port = 20_000 + os.getpid() % 20_000

    def serve(path: str, *more: str, **environment: str) -> str:
        arguments = ["-m", "wmrt", "serve", "--model", *served, "--socket", path, *more]
        arguments += ["--rate", "1e6", "--deadline", "1.0"]
        stack.enter_context(process(*arguments, WMRT_SERVE_PING="3600", **environment))
        return f"unix:{path}"

    stack.enter_context(process(__file__, "--echo", f"{folder}/e"))
    alone = serve(f"{folder}/s1")
    group = serve(f"{folder}/s3", "--robots", "3", "--port", str(port))
    compared: dict[str, tuple[Any, ...]] = {}
    if control:
        thread, asgi = {"WMRT_SERVE_DEADLINE_BY": "thread"}, {"WMRT_SERVE_WEBSOCKET": "asgi"}
        spun = ("--spin", str(SPIN * 1e6))
        direct, python = {"WMRT_SERVE_WEBSOCKET": "direct"}, {VARIABLE: "python"}
        compared = {
            "Unix, codec in Python": (serve(f"{folder}/p", **python), 0.0, "python"),
            "Unix, the event loop reads": (serve(f"{folder}/d", **direct),),
            "Unix, and a thread waits": (serve(f"{folder}/t", **thread),),
            "Unix, queue and tasks": (serve(f"{folder}/q", **asgi),),
            "Unix, both": (serve(f"{folder}/b", **thread, **asgi),),
            "Unix, the service spins": (serve(f"{folder}/w", *spun),),
            "Unix, both sides spin": (serve(f"{folder}/x", *spun), SPIN),
        }
    return {
        "echo, WebSocket, Unix": tracing().echo_arm(f"unix:{folder}/e"),
        "WebSocket, Unix": websocket_arm(alone, "unix"),
        "WebSocket, Unix, group of 3": websocket_arm(group, "unix"),
        "WebSocket, TCP, group of 3": websocket_arm(f"ws://127.0.0.1:{port}", "tcp"),
        **{arm: websocket_arm(path, "unix", *how) for arm, (path, *how) in compared.items()},
        # The last one: it is closed after 5 s without a request.
        "HTTP, TCP, group of 3": http_arm("127.0.0.1", port, "http"),
    }


def tracing() -> Any:
    """`tools.service_trace`, also where this file is run as a script."""
    root = str(Path(__file__).resolve().parents[1])
    if root not in sys.path:
        sys.path.append(root)
    from tools import service_trace

    return service_trace


def show(results: dict[str, Any], pieces: dict[str, Any] | None = None) -> None:
    """A line an arm, and of every codec a line a piece."""
    for arm, found in results.items():
        trip, act, step = (found[k] for k in ("round_trip_us", "above_act_us", "above_step_us"))
        console().print(
            f"{arm:28} round trip p50 {trip['p50']:7.0f} p99 {trip['p99']:7.0f} us, above act "
            f"{act['p50']:5.0f}, above step {step['p50']:5.0f}"
        )
    for codec, found in (pieces or {}).items():
        console().print(f"pieces, with codec {codec}:")
        for name, took in found.items():
            console().print(f"  {name:32} p50 {took['p50']:6.0f} p99 {took['p99']:6.0f} us")


if __name__ == "__main__":
    command()
