"""The service's round trip beside other projects' servers, in turns, on one machine.

    python tools/service_peers.py --peers-python ~/peers/bin/python --openpi ~/openpi --json FILE

Every server runs in a process of its own, and so does every client. openpi's answers with a policy
that does nothing, over a WebSocket on TCP; so does LeRobot's over gRPC; ours steps a tiny model of
random weights behind its breakers, over TCP and, in a second server, over a Unix socket. What each
server calls its policy's own time is taken off; breakers, sessions and checks stay in.

``--peers-python`` is one with openpi-client and lerobot 0.4.4 (with grpcio); ``--openpi`` a
checkout of openpi, whose server is in no package.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from tools.peer_services import answer_questions
from tools.service_latency import websocket_arm
from tools.service_trace import tiny
from wmrt.cli.common import console, json_option, progress, write_result
from wmrt.core import measure
from wmrt.core.errors import WmrtError

PEERS = Path(__file__).with_name("peer_services.py")
WARM_UP = 200


class Asker:
    """A client in a process of its own that steps when told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        if self._line() != "ready":
            raise WmrtError("a client did not get ready")

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WmrtError(f"a client ended: {self._process.args!r}; its error stands above")
        return line.strip()

    def ask(self, steps: int) -> list[tuple[int, int]]:
        """Nanoseconds of each round trip and of the policy in it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return [(trip, policy) for trip, policy in json.loads(self._line())]


@contextlib.contextmanager
def process(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes, ended with the block."""
    running = subprocess.Popen(
        command, env={**os.environ, **environment},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield running
    finally:
        running.terminate()
        running.communicate(timeout=30.0)  # closes the pipes


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int, server: subprocess.Popen[str]) -> None:
    """Until somebody listens; WmrtError if it takes two minutes or the server ends."""
    end = time.monotonic() + 120.0
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if server.poll() is not None or time.monotonic() > end:
            raise WmrtError(f"{server.args!r} does not listen on port {port}")
        time.sleep(0.2)


def peer(stack: contextlib.ExitStack, name: str, python: str, openpi: Path) -> Asker:
    """Another project's server and client."""
    port = free_port()
    environment = {"OPENPI": str(openpi), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [python, "-W", "ignore", str(PEERS), name]
    wait_for(port, stack.enter_context(process([*command, "serve", str(port)], environment)))
    asking = process([*command, "ask", str(port)], environment)
    return Asker(stack.enter_context(asking))


def own(stack: contextlib.ExitStack, model: str, address: str) -> Asker:
    """Our server and client, at ``address``."""
    where = ["--socket", address.removeprefix("unix:")]
    if address.startswith("ws:"):
        where = ["--port", address.rpartition(":")[2]]
    serve = ["-m", "wmrt", "serve", "--model", model, "--threads", "1", "--rate", "1e6", *where]
    serve += ["--period", "0.001", "--deadline", "1.0"]
    stack.enter_context(process([sys.executable, *serve], {}))
    asking = process([sys.executable, "-m", "tools.service_peers", "--ask", address], {})
    return Asker(stack.enter_context(asking))


def compare(arms: dict[str, Asker], rounds: int, steps: int) -> dict[str, Any]:
    """Every arm in turns: microseconds above the policy's step, and the ratio to ours."""
    above: dict[str, list[list[float]]] = {name: [] for name in arms}
    for arm in arms.values():
        arm.ask(WARM_UP)
    with progress() as bar:
        task = bar.add_task("asking", total=rounds)
        for _ in range(rounds):
            for name, arm in arms.items():
                above[name].append([(t - p) / 1e3 for t, p in arm.ask(steps)])
            bar.advance(task)
    first = next(iter(arms))
    medians = {name: [statistics.median(r) for r in found] for name, found in above.items()}
    results = {}
    for name, found in above.items():
        ratios = sorted(b / a for a, b in zip(medians[first], medians[name], strict=True))
        results[name] = {
            "above_step_us": measure.summary([us for each in found for us in each]),
            "times_ours": [measure.percentile(ratios, p) for p in (25, 50, 75)],
        }
    return results


@click.command(epilog="Example: python tools/service_peers.py --rounds 20 --json peers.json")
@click.option("--peers-python", help="A Python with openpi-client and lerobot. Default: ours only.")
@click.option("--openpi", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True)
@click.option("--steps", type=click.IntRange(1), default=100, show_default=True, help="A round.")
@click.option("--ask", "address", hidden=True)
@json_option
def command(
    peers_python: str | None,
    openpi: Path | None,
    rounds: int,
    steps: int,
    address: str | None,
    json_path: Path | None,
) -> None:
    """Measure a round trip beside those of other projects."""
    if address is not None:
        _answer(address)
        return
    if (peers_python is None) != (openpi is None):
        raise click.UsageError("--peers-python and --openpi go together")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        model = tiny(Path(name))
        arms = {
            "wmrt, WebSocket, TCP": own(stack, model, f"ws://127.0.0.1:{free_port()}"),
            "wmrt, WebSocket, Unix": own(stack, model, f"unix:{name}/s"),
        }
        if peers_python is not None and openpi is not None:
            arms["openpi, WebSocket, TCP"] = peer(stack, "openpi", peers_python, openpi)
            arms["LeRobot, gRPC, TCP"] = peer(stack, "lerobot", peers_python, openpi)
        results = compare(arms, rounds, steps)
    show(results)
    found = {"arms": results, "load_average": os.getloadavg()[0], "rounds": rounds, "steps": steps}
    write_result(json_path, found, model="tiny, random weights")


def _answer(address: str) -> None:
    step = websocket_arm(address, "r1")

    def trip() -> tuple[int, int]:
        took, _, policy, source = step()
        if source != "policy":  # what a blocked step costs is not what a step costs
            raise WmrtError(f"an action came from {source}, not from the policy")
        return took, policy

    answer_questions(trip)


def show(results: dict[str, Any]) -> None:
    """A line an arm."""
    for arm, found in results.items():
        above, (low, middle, high) = found["above_step_us"], found["times_ours"]
        console().print(
            f"{arm:24} above the policy's step p50 {above['p50']:6.0f} p99 {above['p99']:6.0f} us, "
            f"{middle:.2f} ({low:.2f} to {high:.2f}) times the first"
        )


if __name__ == "__main__":
    command()
