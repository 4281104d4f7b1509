"""What becomes of robots when a replica of their fleet is killed, and when all are replaced; and
what the proxy adds to a round trip.

    python tools/fleet_check.py --json benchmarks/fleet.json

Needs `pip install 'wmrt[fleet]'`. Every answer is checked against the robot's own observation and
against the number of steps that its own memory has to have by then.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests.service.doubles, here and in replicas

from tools.fleet_load import Load
from tools.service_latency import figures, http_arm, measured, show, websocket_arm
from tools.service_trace import tiny
from wmrt.cli.common import console, falls_short, json_option, write_result
from wmrt.core.errors import WmrtError
from wmrt.core.wire import ROBOT_HEADER
from wmrt.service.fleet_status import where
from wmrt.service.leases import Leases

#: Seconds after its start by which the proxy knows a replica. Ray calls a fleet ready before that:
#: robots that come at once find fewer replicas, and are not where their names belong.
_KNOWN = 3.0
_CANARIES = ("--seats", "tests.service.doubles:canary_seats", "--period", "0.01", "--deadline", "5")


class Fleet:
    """`wmrt fleet` in a process of its own.

    Attributes:
        address: of its proxy. snapshots: its folder.
    """

    def __init__(self, folder: Path, port: int, *options: str) -> None:
        self.address, self.snapshots = f"ws://127.0.0.1:{port}", folder / f"kept-{port}"
        self._log = folder / f"fleet-{port}.log"
        root = str(Path(__file__).parents[1])
        command = [sys.executable, "-m", "wmrt", "fleet", "--snapshots", str(self.snapshots)]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(port), *options],
                env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.generations = 0

    def ready(self, seconds: float = 240.0) -> float:
        """Wait for the next deployment; the seconds that it took."""
        self.generations += 1
        began = time.monotonic()
        while self._log.read_bytes().count(b"serving on") < self.generations:
            if self._process.poll() is not None or time.monotonic() - began > seconds:
                raise WmrtError(f"the fleet is not ready: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)
        return time.monotonic() - began

    def owners(self) -> dict[str, list[str]]:
        """Replicas that serve robots, with their names."""
        found: dict[str, list[str]] = {}
        for row in where(self.snapshots):
            if row["state"] == "served":
                found.setdefault(row["owner"], []).append(row["robot"])
        return found

    def kill_fullest(self) -> list[str]:
        """kill -9 the replica with most robots; their names."""
        owner, robots = max(self.owners().items(), key=lambda item: len(item[1]))
        os.kill(int(owner.split("-")[-2]), signal.SIGKILL)
        return robots

    def replaced(self, replicas: int, seconds: float = 120.0) -> None:
        """Wait until there are that many again, and the proxy knows them."""
        end, leases = time.monotonic() + seconds, Leases(self.snapshots, reads=True)
        while replicas > sum(leases.is_alive(p.stem) for p in leases.folder.glob("*.alive")):
            if time.monotonic() > end:
                raise WmrtError(
                    f"no replica came for the killed one: {self._log.read_text()[-500:]}"
                )
            time.sleep(0.05)
        time.sleep(_KNOWN)

    def homes(self, robots: list[str]) -> dict[str, set[str]]:
        """By robot, those of the replica that its HTTP requests come to."""
        link = http.client.HTTPConnection(*self.address.removeprefix("ws://").split(":"))  # type: ignore[arg-type]
        found = {}
        with contextlib.closing(link):
            for robot in robots:
                link.request("GET", "/v1/info", headers={ROBOT_HEADER: robot})
                answer = link.getresponse()
                told = json.loads(answer.read())
                if answer.status != 200:
                    raise WmrtError(f"HTTP for {robot}: {answer.status} {told}")
                found[robot] = set(told["robots"])
        return found

    def redeploy(self) -> None:
        os.kill(self._process.pid, signal.SIGHUP)

    def stop(self) -> int | None:
        """SIGTERM; the exit status, None if it had to be killed."""
        self._process.terminate()
        try:
            return self._process.wait(90.0)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            return None


#: Ray gives its own processes 30 s to start, which no setting changes and a busy machine exceeds.
_SLOW, _TRIES = "timed out during startup", 4


@contextlib.contextmanager
def fleet(folder: Path, port: int, *options: str) -> Iterator[Fleet]:
    """A fleet that is ready, stopped at the end."""
    for last in [False] * (_TRIES - 1) + [True]:
        running = Fleet(folder, port, *options)
        try:
            running.ready()
            break
        except WmrtError as error:
            running.stop()
            if last or _SLOW not in str(error):
                raise
    try:
        yield running
    finally:
        running.stop()


def events(
    folder: Path, port: int, replicas: int, robots: int, seconds: float, proxy: str = "haproxy"
) -> dict[str, Any]:
    """Load, a kill, a redeployment, a stop; figures of each."""
    limits = ("--replicas", str(replicas), "--robots", str(min(16, robots)), "--proxy", proxy)
    with fleet(folder, port, *limits, *_CANARIES) as running:
        time.sleep(_KNOWN)
        load = Load(running.address, robots, rate=10.0, seed=int.from_bytes(os.urandom(4), "big"))
        try:
            time.sleep(5.0)
            load.phase()
            results = {"steady": _told(load, seconds)}
            spread = sorted(len(names) for names in running.owners().values())
            results["steady"]["robots_by_replica"] = spread
            results["kill"] = _kill(running, load, replicas, seconds)
            before = load.counters()
            running.redeploy()
            took = running.ready()
            results["redeploy"] = {"seconds": took, **_told(load, 5.0, before)}
        finally:
            load.stop()
    left = where(running.snapshots)
    results["stop"] = {"robots": len(left), "free": sum(row["state"] == "free" for row in left)}
    return results


def _kill(running: Fleet, load: Load, replicas: int, seconds: float) -> dict[str, Any]:
    """Figures of a replica that is killed and replaced, and the robots that notice."""
    before, lost = load.counters(), load.lost()
    killed = sorted(running.kill_fullest())
    told = _told(load, seconds, before)
    running.replaced(replicas)
    stayed = {robot.name for robot in load.robots} - set(killed)
    homes = running.homes(sorted(stayed))
    # At its own replica, or at the new one, which has none of those that stayed.
    strays = [name for name, there in homes.items() if name not in there and there & stayed]
    return {
        "robots_of_killed": len(killed),
        "killed": killed,
        "cut": sorted(name for name, count in load.lost().items() if count > lost[name]),
        "strays": strays,
        **told,
    }


def _told(load: Load, seconds: float, before: dict[str, int] | None = None) -> dict[str, Any]:
    """A phase, with how the clients' counters went up since ``before``."""
    told = load.phase(seconds)
    if before is not None:
        after = load.counters()
        for name in ("lost", "resumed", "sessions_lost", "steps_lost"):
            told[f"clients_{name}"] = after.get(name, 0) - before.get(name, 0)
    return told


def latencies(folder: Path, port: int, rounds: int, proxy: str) -> dict[str, Any]:
    """Round trips to one tiny model of random weights, through the proxy and without, in turns."""
    model = str(folder / "tiny") if (folder / "tiny").exists() else tiny(folder)
    served = ("--model", model, "--threads", "1", "--period", "0.001", "--rate", "1e6")
    served = (*served, "--deadline", "1.0", "--robots", "2")
    serve = [sys.executable, "-m", "wmrt", "serve", *served, "--port", str(port + 1)]
    plain = subprocess.Popen(serve)
    try:
        with fleet(folder, port, "--replicas", "2", "--proxy", proxy, *served) as running:
            arms = {
                "wmrt serve, WebSocket": websocket_arm(f"ws://127.0.0.1:{port + 1}", "ws"),
                "wmrt fleet, WebSocket": websocket_arm(running.address, "ws"),
                "wmrt serve, HTTP": http_arm("127.0.0.1", port + 1, "http"),
                "wmrt fleet, HTTP": http_arm("127.0.0.1", port, "http"),
            }
            return {arm: figures(s) for arm, s in measured(arms, rounds, 25).items()}
    finally:
        plain.terminate()
        plain.wait(30.0)


def faults(found: dict[str, Any], robots: int) -> list[str]:
    """What is not as it has to be."""
    wrong = []
    for name in ("steady", "kill", "redeploy"):
        phase = found[name]
        if phase["mixed"]:
            wrong.append(f"{name}: {phase['mixed']} answers were not the robot's own")
        if phase["robots_answered"] < robots:
            wrong.append(f"{name}: {robots - phase['robots_answered']} robots had no answer")
        if phase.get("clients_sessions_lost"):
            wrong.append(f"{name}: {phase['clients_sessions_lost']} sessions were lost")
    if found["kill"]["cut"] != found["kill"]["killed"]:
        wrong.append(
            f"kill: {found['kill']['cut']} lost their connections, "
            f"{found['kill']['killed']} were on the replica that was killed"
        )
    if found["kill"]["strays"]:
        wrong.append(f"kill: {found['kill']['strays']} come to another old replica over HTTP")
    if found["redeploy"]["clients_steps_lost"]:
        wrong.append(f"redeploy: {found['redeploy']['clients_steps_lost']} steps were lost")
    if found["stop"] != {"robots": robots, "free": robots}:
        wrong.append(f"stop: {found['stop']}, and not every robot was put away")
    return wrong


@click.command(epilog="Example: python tools/fleet_check.py --seconds 20 --json fleet.json")
@click.option("--replicas", type=click.IntRange(2), default=3, show_default=True)
@click.option("--robots", type=click.IntRange(1, 16), default=12, show_default=True)
@click.option("--seconds", type=click.FloatRange(1.0), default=20.0, show_default=True)
@click.option("--rounds", type=click.IntRange(0), default=20, show_default=True, help="0: none.")
@click.option("--proxy", "proxies", type=click.Choice(["haproxy", "ray"]), multiple=True)
@json_option
def command(
    replicas: int,
    robots: int,
    seconds: float,
    rounds: int,
    proxies: tuple[str, ...],
    json_path: Path | None,
) -> None:
    """Kill a replica, redeploy, stop, all under load; measure the proxies."""
    port = 20_000 + os.getpid() % 20_000
    results: dict[str, Any] = {"replicas": replicas, "robots": robots, "proxies": {}}
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        for proxy in proxies or ("haproxy", "ray"):
            port += 4
            found = events(Path(name), port, replicas, robots, seconds, proxy)
            for phase, told in found.items():
                console().print(f"{proxy}, {phase}: {told}", markup=False, soft_wrap=True)
            wrong += [f"{proxy}, {fault}" for fault in faults(found, robots)]
            if rounds:
                found["latency"] = latencies(Path(name), port + 2, rounds, proxy)
                show(found["latency"])
            results["proxies"][proxy] = {**found, "load_average": os.getloadavg()[0]}
    write_result(json_path, results, model="canaries; tiny, random weights")
    if wrong:
        falls_short("; ".join(wrong))


if __name__ == "__main__":
    command()
