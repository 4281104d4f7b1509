"""What people who look cost: a robot's steps while nobody has its live page open, while eight do.

    python -m tools.service_viewers --rounds 30 --json benchmarks/service_viewers.json

One service with the shipped model, one robot that asks at a steady rate, blocks with and without
viewers in turns. Viewers are streams of `/v1/live` which a process of its own reads and does not
look at: on another machine a browser would draw them. A second arm without viewers says how much
two blocks differ by themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from tools.service_latency import whole_state
from tools.service_rig import ROOT, serving
from wmrt.cli.common import console, falls_short, json_option, track, write_result
from wmrt.client import Client, connect
from wmrt.core import measure
from wmrt.core.errors import WmrtError
from wmrt.service.viewers import VIEWERS

#: Arms by their number of viewers. The others are compared with the first, round by round.
ARMS = {"nobody looks": 0, "nobody again": 0, f"{VIEWERS} look": VIEWERS}
#: Seconds until a block counts, and steps before everything.
SETTLE, WARM_UP = 0.3, 50
_ASK = b"GET /v1/live HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"


async def _watch(port: int, seen: list[int], number: int) -> None:
    """One viewer: count its frames until it is cancelled, from the one on that brings it up to
    date: those before it bring what was there already."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_ASK)
        while data := await reader.read(1 << 20):
            if seen[number] or b'"more":false' in data:
                seen[number] += data.count(b'"kind":"frame"')
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _look(port: int) -> None:
    """Every line on stdin is a number of viewers, who are there when one comes back; with the
    frames that each of those before them has seen."""
    loop, seen, tasks = asyncio.get_running_loop(), list[int](), list[asyncio.Task[None]]()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        before, seen = seen, [0] * int(line)
        tasks = [asyncio.create_task(_watch(port, seen, i)) for i in range(len(seen))]
        while not all(seen) and not any(task.done() for task in tasks):
            await asyncio.sleep(0.01)
        print(json.dumps({"frames": before, "ended": sum(t.done() for t in tasks)}), flush=True)


class Audience:
    """A process of viewers."""

    def __init__(self, port: int) -> None:
        self._running = subprocess.Popen(
            [sys.executable, "-m", "tools.service_viewers", "--look", str(port)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def be(self, viewers: int) -> list[int]:
        """So many look now; frames that each of those before them has seen."""
        assert self._running.stdin is not None and self._running.stdout is not None
        self._running.stdin.write(f"{viewers}\n")
        self._running.stdin.flush()
        told = json.loads(self._running.stdout.readline())
        if told["ended"]:
            raise WmrtError(f"{told['ended']} of {viewers} viewers were not let in")
        frames: list[int] = told["frames"]
        return frames

    def close(self) -> None:
        self._running.communicate(timeout=30.0)


@contextmanager
def audience(port: int) -> Iterator[Audience]:
    made = Audience(port)
    try:
        yield made
    finally:
        made.close()


def block(robot: Client, state: dict[str, Any], hz: float, steps: int) -> list[tuple[float, float]]:
    """Milliseconds of each step at ``hz``: round trip, and within the service its control step."""
    took, due = [], time.monotonic()
    for _ in range(steps):
        time.sleep(max(0.0, due - time.monotonic()))
        answer = robot.act(state)
        took.append((answer.round_trip_ns * 1e-6, answer.act_ns * 1e-6))
        due = max(due + 1 / hz, time.monotonic() - 1 / hz)
    return took


def processor_seconds(pid: int) -> float:
    """What all threads of a process have had of a processor: other processes do not change it."""
    parts = [path.read_text().split()[0] for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(map(int, parts)) * 1e-9


def measured(rounds: int, hz: float, steps: int, settings: dict[str, Any], seed: int) -> Any:
    """Samples of every arm by round; processor time of a second of each block, in milliseconds;
    frames a second of each viewer in each block."""
    samples: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in ARMS}
    used: dict[str, list[float]] = {name: [] for name in ARMS}
    rates, order = list[float](), random.Random(seed)
    with serving("--model", **settings) as service, audience(service.port) as looking:
        with connect(service.unix, "looked-at", opening=120.0, deadline=20.0) as robot:
            state = whole_state(robot.schema)
            block(robot, state, hz, WARM_UP)
            for _ in track(range(rounds), "rounds"):
                for name in order.sample(list(ARMS), len(ARMS)):
                    looking.be(ARMS[name])
                    began, had = time.monotonic(), processor_seconds(service.pid)
                    block(robot, state, hz, round(SETTLE * hz))
                    samples[name].append(block(robot, state, hz, steps))
                    seconds = time.monotonic() - began
                    used[name].append(1e3 * (processor_seconds(service.pid) - had) / seconds)
                    rates += [frames / seconds for frames in looking.be(0)]
    return samples, used, rates


def figures(samples: dict[str, list[list[tuple[float, float]]]]) -> dict[str, Any]:
    """Percentiles of each arm, and of each round's ratio to its block in which nobody looks."""
    arms, ratios = dict[str, Any](), dict[str, Any]()
    first = samples[next(iter(ARMS))]
    for name, rounds in samples.items():
        for i, kind in enumerate(("round_trip_ms", "act_ms")):
            everything = [one[i] for steps in rounds for one in steps]
            arms.setdefault(name, {})[kind] = measure.summary(everything)
            if rounds is not first:
                pairs = [
                    (sorted(one[i] for one in steps), sorted(one[i] for one in other))
                    for steps, other in zip(rounds, first, strict=True)
                ]
                ratios.setdefault(name, {})[kind] = {
                    f"p{q}": spread(
                        [measure.percentile(a, q) / measure.percentile(b, q) for a, b in pairs]
                    )
                    for q in (50, 90, 99)
                }
    return {"arms": arms, "ratios": ratios}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, high = measure.quartiles(values)
    return {"median": measure.median(values), "q1": low, "q3": high}


def show(found: dict[str, Any]) -> None:
    table = Table(
        *("", "p50, ms", "p90", "p99", "p50 / nobody's (quartiles)", "p99 / nobody's"),
        "processor, ms a second",
    )
    for name, arm in found["arms"].items():
        row = [f"{arm['round_trip_ms'][q]:.2f}" for q in ("p50", "p90", "p99")]
        for q in ("p50", "p99"):
            one = found["ratios"].get(name, {}).get("round_trip_ms", {}).get(q)
            row.append("" if one is None else "{median:.2f} ({q1:.2f} to {q3:.2f})".format(**one))
        row.append(
            "{median:.0f} ({q1:.0f} to {q3:.0f})".format(**found["processor_ms_per_s"][name])
        )
        table.add_row(name, *row)
    console().print(table)
    console().print(f"frames a second and viewer: {found['frames_per_s']['median']:.1f}")


@click.command(epilog="Example: python -m tools.service_viewers --rounds 30 --json viewers.json")
@click.option("--rounds", default=30, type=click.IntRange(4), show_default=True)
@click.option("--hz", default=50.0, type=click.FloatRange(1.0), show_default=True)
@click.option("--steps", default=100, type=click.IntRange(10), show_default=True, help="A block.")
@click.option("--model", default="highway", show_default=True)
@click.option("--recipe", default="nvfp4", show_default=True)
@click.option("--look", type=int, hidden=True)
@json_option
def main(
    rounds: int, hz: float, steps: int, model: str, recipe: str, look: int | None,
    json_path: Path | None,
) -> None:  # fmt: skip
    """Measure what viewers of the live page add to a robot's steps."""
    if look is not None:
        asyncio.run(_look(look))
        return
    seed, before = random.SystemRandom().getrandbits(32), os.getloadavg()[0]
    settings = {"model": model, "recipe": recipe, "threads": 1, "clock": "step", "period": 0.1}
    samples, used, rates = measured(rounds, hz, steps, settings, seed)
    found = figures(samples) | {
        "processor_ms_per_s": {name: spread(each) for name, each in used.items()},
        "frames_per_s": spread(rates) | {"least": min(rates)},
        "load": {"before": before, "after": os.getloadavg()[0], "cpus": os.cpu_count()},
        "seed": seed, "rounds": rounds, "hz": hz, "steps": steps, "viewers": VIEWERS,
    }  # fmt: skip
    show(found)
    write_result(json_path, found, model=model, recipe=recipe)
    if min(rates) < 1.0:
        falls_short("a viewer saw less than a frame a second: that is no looking")


if __name__ == "__main__":
    main()
