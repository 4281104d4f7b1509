"""Processes of clients for `tools.service_load`: robots that stream, clients too many, the decoy.

    python -m tools.service_clients '{"kind": ...}'

A process says that it is ready, reads when to begin (`time.monotonic` seconds) and writes its
result, a line of JSON.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

from tools.canary import counted
from tools.intruders import Intruders, decoy, humble
from tools.service_latency import whole_state
from tools.service_rig import ROOT
from tools.service_windows import tries
from wmrt.client import connect
from wmrt.core.errors import WmrtError

ROBOTS, HZ = 16, 10.0


def states(schema: dict[str, Any], seed: str) -> Any:
    """States of a schema without end: every number anywhere within its range."""
    rng, whole = random.Random(seed), whole_state(schema)
    fields = {field["name"]: field for field in schema["fields"]}
    numbers = [name for name in whole if fields[name]["kind"] == "numeric"]
    while True:
        for name in numbers:
            low, high = fields[name]["low"], fields[name]["high"]
            whole[name] = low + (high - low) * rng.random()
        yield dict(whole)


class Stream:
    """One robot's client: steps from ``start`` (monotonic seconds) for ``seconds``."""

    def __init__(self, address: str, number: int, seed: int, model: bool) -> None:
        self.number, self._model, self._seed = number, model, seed
        self.client = connect(address, f"robot-{number}", opening=120.0, deadline=20.0)
        self.at: list[float] = []
        self.took: list[float] = []
        self.actions: list[str] = []
        self.counts: Counter[str] = Counter()

    def run(self, start: float, seconds: float) -> None:
        rng, asked = random.Random(f"{self._seed} {self.number}"), 0
        model = states(self.client.schema, f"{self._seed} {self.number}")
        first = self.number / (ROBOTS * HZ)
        for turn in range(round(seconds * HZ)):
            due = start + first + turn / HZ
            time.sleep(max(0.0, due - time.monotonic()))
            canary = round(rng.uniform(-1, 1), 6)
            own = {"canary": canary, "wait": 0.0, "lane": "left"}
            answer = self.client.act(next(model) if self._model else own)
            asked += 1
            self.at.append(due - start)
            self.took.append(answer.round_trip_ns * 1e-6)
            self._look(answer, canary, asked)

    def _look(self, answer: Any, canary: float, asked: int) -> None:
        self.counts["answers"] += 1
        self.counts[answer.source] += 1
        self.counts["late"] += answer.late
        self.counts["unsafe"] += not all(-1.0 <= value <= 1.0 for value in answer.action)
        self.counts["mixed"] += answer.step != asked
        if self._model:
            self.actions.append(packed(answer.action))
        elif abs(float(answer.action[0]) - canary) > 1e-6 or counted(answer.action[1]) != asked:
            self.counts["mixed"] += 1


def packed(action: Any) -> str:
    """The bits of an action."""
    return struct.pack(f"<{len(action)}f", *map(float, action)).hex()


def work(task: dict[str, Any]) -> Any:
    """What a client process does; its result goes to stdout."""
    kind = task.pop("kind")
    if kind == "decoy":
        decoy([bytes.fromhex(answer) for answer in task["answers"]], _print)
    elif kind == "intruders":
        return intrude(**task)
    return stream(**task)


def _print(said: object) -> None:
    print(said, flush=True)


def intrude(kinds: list[str], clients: int, named: bool, ports: dict[str, int]) -> dict[str, Any]:
    """Clients too many, as `tries` has them."""
    runs_as = humble()
    own = Intruders(clients, named)
    _print("ready")
    start = float(sys.stdin.readline())
    return {"runs_as": runs_as, "heard": own.run(tries(kinds, clients, start, ports))}


def stream(
    address: str, numbers: list[int], seed: int, model: bool, seconds: float
) -> dict[str, Any]:
    """Robots, each in a thread."""
    own = [Stream(address, n, seed, model) for n in numbers]
    _print("ready")
    start = float(sys.stdin.readline())
    threads = [threading.Thread(target=o.run, args=(start, seconds)) for o in own]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in own:
        one.client.close()
    return {
        str(o.number): {"at": o.at, "took": o.took, "actions": o.actions, "counts": dict(o.counts)}
        for o in own
    }


class Worker:
    """A process of clients, or the decoy."""

    def __init__(self, kind: str, **task: Any) -> None:
        task["kind"] = kind
        self._running = subprocess.Popen(
            [sys.executable, "-m", "tools.service_clients", json.dumps(task)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ready(self) -> str:
        """What it says first, once it has."""
        assert self._running.stdout is not None  # a pipe was asked for
        said = self._running.stdout.readline()
        if not said:
            raise WmrtError("a process of clients ended before it was ready")
        return said

    def kill(self) -> None:
        """End it, and close its pipes."""
        self._running.kill()
        self._running.communicate(timeout=60.0)

    def result(self) -> dict[str, Any]:
        """Its result, once it has one."""
        assert self._running.stdout is not None
        data: dict[str, Any] = json.loads(self._running.stdout.readline())
        self._running.communicate(timeout=60.0)  # and closes the pipes
        return data

    def start(self, at: float) -> None:
        assert self._running.stdin is not None
        self._running.stdin.write(f"{at}\n")
        self._running.stdin.flush()


if __name__ == "__main__":
    _print(json.dumps(work(json.loads(sys.argv[1]))))
