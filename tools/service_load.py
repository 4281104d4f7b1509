"""Sixteen robots at 10 Hz on one process, and 184 clients too many beside them.

    python -m tools.service_load --seconds 60 --json benchmarks/service_load.json

Two forms. Seats that answer with their own observation's canary, in a process of their own: no
reply may be another robot's. Then the shipped model in nvfp4, every robot with states of its own:
each reply is compared, bit for bit, with a single-robot service that is fed the same observations.

Time is cut into windows of two seconds, of five kinds in an order drawn anew for each block of
five: nobody else is there (``quiet``); 184 clients knock, each once, at the service
(``true``) or at a process that refuses in the same bytes and is not the service (``decoy``);
``even``, spread over the window, or in a ``burst``, all at once. What differs between decoy and
true is what the service does to its robots; what differs between quiet and decoy is what the
harness does. The robots' clients live in two processes, the others in a third, which runs when
nobody else wants the processor, the decoy in a fourth.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from tools.intruders import Heard, knock, words
from tools.service_clients import HZ, ROBOTS, Worker, packed, states
from tools.service_rig import Service, serving
from tools.service_windows import FORMS, WINDOW, figures, schedule
from wmrt.cli.common import console, falls_short, json_option, write_result
from wmrt.client import connect
from wmrt.core.errors import WmrtError

INTRUDERS = 184


def answers(port: int, named: bool) -> list[bytes]:
    """What the service says to a client too many, thing by thing."""
    said, heard, _ = knock(port, words("one-too-many", named))
    if said != "too_many_robots":
        raise WmrtError(f"a client too many was told {said!r}; it is to be told too_many_robots")
    head, end, rest = heard.partition(b"\r\n\r\n")
    return [head + end, rest] if head.startswith(b"HTTP/1.1 101") else [heard]


def load(service: Service, kinds: list[str], seed: int, model: bool, named: bool) -> dict[str, Any]:
    """Robots for the length of the windows, and the clients too many."""
    common = {"address": service.tcp, "seed": seed, "model": model}
    seconds = WINDOW * len(kinds)
    robots = [
        Worker("stream", numbers=list(range(i, ROBOTS, 2)), seconds=seconds, **common)
        for i in range(2)
    ]
    for worker in robots:
        worker.ready()
    other = Worker("decoy", answers=[one.hex() for one in answers(service.port, named)])
    try:
        ports = {"decoy": int(other.ready()), "true": service.port}
        more = Worker("intruders", kinds=kinds, clients=INTRUDERS, named=named, ports=ports)
        more.ready()
        start = time.monotonic() + 0.5
        for worker in (*robots, more):
            worker.start(start)
        streams: dict[str, Any] = {}
        for worker in robots:
            streams |= worker.result()
        return {"streams": streams, **more.result()}
    finally:
        other.kill()


def told(found: dict[str, Any], kinds: Sequence[str], seed: int) -> dict[str, Any]:
    """What a load says, in figures."""
    streams = found["streams"].values()
    steps = [pair for s in streams for pair in zip(s["at"], s["took"], strict=True)]
    heard = [Heard(*one) for one in found["heard"]]
    counts = sum((Counter(s["counts"]) for s in streams), Counter[str]())
    return {
        **figures(kinds, steps, heard, seed),
        "intruders_run_as": found["runs_as"],
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
    say = console().print
    say(table)
    low, high = result["quiet_p99_iqr_ms"]
    noisy = ", too noisy for a verdict on p99" if result["noisy"] else ""
    say(f"p99 of quiet windows: IQR {low:.2f} to {high:.2f}, {high - low:.2f} ms{noisy}")
    for name in FORMS:
        for whose, one in result["p99_change_ms"][name].items():
            bounds = f"95% {one['low']:+.2f} to {one['high']:+.2f}"
            say(f"p99 change, {name}, {whose}: {one['median']:+.2f} ms ({bounds})")
    for kind, one in result["refused"].items():
        ms, lag = one["ms"], one["harness_lag_ms"]
        say(
            f"{kind}: {one['said']}, told after p50 {ms['p50']:.1f}, p99 {ms['p99']:.1f}, "
            f"max {ms['max']:.1f} ms; asked late by up to {lag['max']:.1f} ms"
        )
    say(f"mixed {result['counts']['mixed']}; clients too many run as: {result['intruders_run_as']}")


@click.command(epilog="Example: python -m tools.service_load --seconds 60 --json load.json")
@click.option("--seconds", default=60.0, type=click.FloatRange(6.0), show_default=True)
@click.option(
    "--named/--nameless", default=True, show_default=True,
    help="Clients too many name their robot in the request, as `wmrt.client` does, or only after "
    "the WebSocket is open.",
)  # fmt: skip
@click.option("--replay", default=4, type=click.IntRange(1, ROBOTS), show_default=True)
@click.option("--canary/--no-canary", default=True, help="The form with canaries.")
@click.option("--model/--no-model", default=True, help="The form with the shipped model.")
@json_option
def main(
    seconds: float, named: bool, replay: int, canary: bool, model: bool, json_path: Path | None
) -> None:
    """Load one process with 16 robots, and have 184 more ask for places."""
    seed = random.SystemRandom().getrandbits(32)
    common: dict[str, Any] = {"robots": ROBOTS, "rate": 2000.0, "clock": "step", "period": 0.1}
    results: dict[str, Any] = {"seed": seed, "robots": ROBOTS, "intruders": INTRUDERS, "hz": HZ}
    kinds = schedule(seconds, seed)
    results["named"] = named
    results["load"] = {"before": os.getloadavg()[0], "cpus": os.cpu_count()}
    if canary:
        with serving(**common) as service:
            results["canary"] = told(load(service, kinds, seed, False, named), kinds, seed)
            show("canaries", results["canary"])
    if model:
        common |= {"model": "highway", "recipe": "nvfp4", "threads": 1}
        with serving("--model", **common) as service:
            found = load(service, kinds, seed, True, named)
        results["model"] = told(found, kinds, seed)
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
        for kind, refused in one["refused"].items():
            wrong += [f"{kind}: not refused"] * (set(refused["said"]) != {"too_many_robots"})
            late = kind.startswith("true") and refused["later_than_100_ms"]
            wrong += [f"{kind}: told late"] * bool(late)
        wrong += ["noisy: no verdict on p99"] * bool(one["noisy"])
        for form, unchanged in one["p99_unchanged"].items():
            wrong += [f"{form}: p99 changed"] * (not unchanged)
    if wrong:
        falls_short(", ".join(wrong))


if __name__ == "__main__":
    main()
