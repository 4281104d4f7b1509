"""Sixteen robots at 10 Hz on one process, and 184 clients too many in the middle of it.

    python -m tools.service_load --seconds 60 --json benchmarks/service_load.json

Two forms. Seats that answer with their own observation's canary, in a process of their own: no
reply may be another robot's. Then the shipped model in nvfp4, every robot with states of its own:
each reply is compared, bit for bit, with a single-robot service that is fed the same observations.
In the middle third, 184 clients ask for places that are not there, from an event loop in a process
of its own (`tools.intruders`). The robots' clients live in two further processes. Times are round
trips, on one machine with everything else that runs on it; `load` says how much that was.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from tools.canary import counted
from tools.intruders import intrude
from tools.service_latency import whole_state
from tools.service_rig import ROOT, Service, serving
from wmrt.cli.common import console, falls_short, json_option, write_result
from wmrt.client import connect
from wmrt.core import measure
from wmrt.core.errors import WmrtError

ROBOTS, INTRUDERS, HZ = 16, 184, 10.0
#: Seconds of a block of which a p99 is taken, for its spread.
BLOCK = 2.0
#: Milliseconds within which a client too many is told.
TOLD = 100.0


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


def work(task: dict[str, Any]) -> dict[str, Any]:
    """What a client process does; its result goes to stdout."""
    if "clients" in task:
        print("ready", flush=True)
        return intrude(start=float(sys.stdin.readline()), **task)
    own = [Stream(task["address"], n, task["seed"], task["model"]) for n in task["numbers"]]
    print("ready", flush=True)
    start = float(sys.stdin.readline())
    threads = [threading.Thread(target=o.run, args=(start, task["seconds"])) for o in own]
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
    """A process of clients."""

    def __init__(self, **task: Any) -> None:
        self._running = subprocess.Popen(
            [sys.executable, "-m", "tools.service_load", "--task", json.dumps(task)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ready(self) -> None:
        assert self._running.stdout is not None  # a pipe was asked for
        if self._running.stdout.readline() != "ready\n":
            raise WmrtError("a process of clients ended before it was ready")

    def result(self, start: float | None = None) -> dict[str, Any]:
        """Tell it when to start; its result, once it has one."""
        if start is not None:
            self.start(start)
        assert self._running.stdout is not None
        data: dict[str, Any] = json.loads(self._running.stdout.readline())
        self._running.communicate(timeout=60.0)  # and closes the pipes
        return data

    def start(self, at: float) -> None:
        assert self._running.stdin is not None
        self._running.stdin.write(f"{at}\n")
        self._running.stdin.flush()


def load(service: Service, seconds: float, every: float, seed: int, model: bool) -> dict[str, Any]:
    """Robots for ``seconds``, in the middle third of it the clients too many."""
    third = seconds / 3
    common = {"address": service.tcp, "seed": seed, "model": model, "seconds": seconds}
    robots = [Worker(numbers=list(range(i, ROBOTS, 2)), **common) for i in range(2)]
    asking = {"clients": INTRUDERS, "every": min(every, third), "seconds": third}
    more = Worker(address=service.tcp, **asking)
    for worker in (*robots, more):
        worker.ready()
    start = time.monotonic() + 0.5
    for worker in robots:
        worker.start(start)
    more.start(start + third)
    streams: dict[str, Any] = {}
    for worker in robots:
        streams |= worker.result()
    return {"streams": streams, **more.result()}


def figures(found: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Latencies before, during and after, refusals, and what was mixed."""
    pairs = [p for s in found["streams"].values() for p in zip(s["at"], s["took"], strict=True)]
    third = seconds / 3
    names = ("before", "during", "after")
    windows = {n: [ms for at, ms in pairs if int(at // third) == i] for i, n in enumerate(names)}
    blocks: dict[int, list[float]] = {}
    for at, ms in pairs:
        blocks.setdefault(int(at // BLOCK), []).append(ms)
    p99 = {at: measure.percentile(sorted(ms), 99) for at, ms in blocks.items()}
    outside = [ms for at, ms in p99.items() if not third <= (at + 0.5) * BLOCK < 2 * third]
    inside = [ms for at, ms in p99.items() if third <= (at + 0.5) * BLOCK < 2 * third]
    low, high = measure.quartiles(outside)
    middle = measure.median(inside)
    told = [ms for _, ms in found["told"]]
    counts = sum((Counter(s["counts"]) for s in found["streams"].values()), Counter[str]())
    return {
        "round_trip_ms": {name: measure.summary(ms) for name, ms in windows.items()},
        "p99_of_blocks_ms": {"outside": sorted(outside), "inside": sorted(inside), "s": BLOCK},
        "p99_iqr_outside_ms": [low, high],
        "p99_during_ms": middle,
        "p99_change_over_iqr": (middle - measure.median(outside)) / (high - low or 1e-9),
        "p99_unchanged": middle - measure.median(outside) <= high - low,
        "refusals": dict(Counter(name for name, _ in found["told"])),
        "refused_ms": measure.summary(told),
        "refused_later_than_100_ms": sum(ms > TOLD for ms in told),
        "harness_lag_ms": measure.summary(found["lag_ms"]),
        "counts": {key: counts[key] for key in sorted({*counts, "mixed", "unsafe", "late"})},
    }


def compared(streams: dict[str, Any], seed: int, settings: dict[str, Any]) -> dict[str, int]:
    """Every robot's stream once more, on a service of one robot: replies, and those that differ."""
    replies = different = 0
    for number, stream in streams.items():
        with serving("--model", **(settings | {"robots": 1})) as service:
            with connect(service.unix, "alone", opening=120.0, deadline=20.0) as client:
                given = states(client.schema, f"{seed} {number}")
                for bits in stream["actions"]:
                    different += packed(client.act(next(given)).action) != bits
                    replies += 1
    return {"replies": replies, "different": different}


def show(form: str, result: dict[str, Any]) -> None:
    table = Table("window", "steps", "p50", "p90", "p99", "max", title=f"{form}: round trip, ms")
    for name, one in result["round_trip_ms"].items():
        row = [f"{one[key]:.2f}" for key in ("p50", "p90", "p99", "max")]
        table.add_row(name, str(one["n"]), *row)
    console().print(table)
    told, lag = result["refused_ms"], result["harness_lag_ms"]
    console().print(
        f"mixed {result['counts']['mixed']}, refused {result['refusals']}: p50 {told['p50']:.1f}, "
        f"p99 {told['p99']:.1f}, max {told['max']:.1f} ms, of which the harness up to "
        f"{lag['p99']:.1f} (p99), {lag['max']:.1f} (max)"
    )


@click.command(epilog="Example: python -m tools.service_load --seconds 60 --json load.json")
@click.option("--seconds", default=60.0, type=click.FloatRange(6.0), show_default=True)
@click.option("--every", default=4.0, show_default=True, help="Seconds between two tries of one.")
@click.option("--replay", default=4, type=click.IntRange(1, ROBOTS), show_default=True)
@click.option("--canary/--no-canary", default=True, help="The form with canaries.")
@click.option("--model/--no-model", default=True, help="The form with the shipped model.")
@click.option("--task", hidden=True)
@json_option
def main(
    seconds: float, every: float, replay: int, canary: bool, model: bool, task: str | None,
    json_path: Path | None,
) -> None:  # fmt: skip
    """Load one process with 16 robots, and ask for 184 more."""
    if task is not None:
        print(json.dumps(work(json.loads(task))), flush=True)
        return
    seed = random.SystemRandom().getrandbits(32)
    common: dict[str, Any] = {"robots": ROBOTS, "rate": 2000.0, "clock": "step", "period": 0.1}
    results: dict[str, Any] = {"seed": seed, "robots": ROBOTS, "intruders": INTRUDERS, "hz": HZ}
    results["load"] = {"before": os.getloadavg()[0], "cpus": os.cpu_count()}
    if canary:
        with serving(**common) as service:
            results["canary"] = figures(load(service, seconds, every, seed, False), seconds)
            show("canaries", results["canary"])
    if model:
        common |= {"model": "highway", "recipe": "nvfp4", "threads": 1}
        with serving("--model", **common) as service:
            found = load(service, seconds, every, seed, True)
        results["model"] = figures(found, seconds)
        some = dict(list(found["streams"].items())[:replay])
        results["model"]["single_robot"] = compared(some, seed, common)
        show("highway, nvfp4", results["model"])
        console().print(f"bit for bit: {results['model']['single_robot']}")
    results["load"]["after"] = os.getloadavg()[0]
    write_result(json_path, results, model="highway", recipe="nvfp4")
    _judge([results[form] for form in ("canary", "model") if form in results])


def _judge(forms: list[dict[str, Any]]) -> None:
    wrong = []
    for one in forms:
        wrong += ["mixed"] * bool(one["counts"]["mixed"] or one["counts"]["unsafe"])
        wrong += ["not bit for bit"] * bool(one.get("single_robot", {}).get("different"))
        wrong += ["served too many"] * bool(one["refusals"].get("served"))
        wrong += ["told late"] * bool(one["refused_later_than_100_ms"])
        wrong += ["p99 changed"] * (not one["p99_unchanged"])
    if wrong:
        falls_short(", ".join(wrong))


if __name__ == "__main__":
    main()
