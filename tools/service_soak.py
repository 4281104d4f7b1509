"""Whether a service stays as it was: memory, descriptors and threads over an hour of a robot's day.

    python -m tools.service_soak --seconds 3600 --model --json benchmarks/service_soak.json

Robots stream; every few seconds one of them resets, loses its connection or goes on over another,
a second client asks for its place, somebody sends garbage, or asks how it is. The memory (private
dirty pages) of the last half has to be flat: it grows by less than 1 KiB in 1 000 steps, and so
does the upper end of the growth's 95% interval. A leak of 100 bytes a step, planted in a second
process under the same load, has to be seen, at the interval's lower end. Where the limit lies
within an interval the time was too short, and nothing is proven. The same is told of what is in
use of the memory (`tools.in_use`), which does not grow in stairs.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from tools.service_latency import whole_state
from tools.service_rig import SECRETS, Service, fetch, secrets_seed, serving
from tools.wire import frame, handshake, http_request
from wmrt.cli.common import console, falls_short, json_option, progress, write_result
from wmrt.client import Client, connect
from wmrt.core import measure
from wmrt.core.errors import WmrtError
from wmrt.runtime.bench.flat import LEAK, LIMIT, growth, scatter, uncertainty, verdict

READINGS = 240
#: Steps of each robot before the first reading, with no pause: more than anything is kept of. As
#: many troubles come in between as afterwards, this many seconds apart: memory that a coincidence
#: takes at once stays taken as long as one small object of it is left, so what is rare would look
#: like growth. After 10 500 steps a service went on growing for half an hour, after 60 000 not.
WARM_UP = 60_000
WARM_EVERY = 0.5


class Rider:
    """One robot's client, to which trouble comes between two steps."""

    def __init__(self, address: str, name: str, hz: float, canary: bool, warm_up: int) -> None:
        self.counts: Counter[str] = Counter()
        self.took: list[float] = []
        self.trouble: list[str] = []
        self._address, self._hz, self._canary, self._warm_up = address, hz, canary, warm_up
        self.warm = threading.Event()
        self._rng = random.Random(f"{name} {secrets_seed()}")
        self.client = connect(address, name, deadline=20.0, opening=60.0)
        self._state = whole_state(self.client.schema)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            try:
                if self.trouble:
                    self._suffer(self.trouble.pop())
                self._step()
            except WmrtError as error:
                self.counts[getattr(error, "name", type(error).__name__)] += 1
            if self.counts["answers"] < self._warm_up:
                continue
            self.warm.set()
            if self._hz:
                due = max(due + 1 / self._hz, time.monotonic() - 1.0)
                self._ended.wait(max(0.0, due - time.monotonic()))

    def ready(self) -> bool:
        """Whether its warm-up is over; `WmrtError` if it has ended: then nothing is soaked."""
        if not self._thread.is_alive():
            raise WmrtError("a robot ended before its time; its error stands above")
        return self.warm.is_set()

    def _step(self) -> None:
        canary = round(self._rng.uniform(-1, 1), 6)
        state = self._state | ({"canary": canary, "wait": 0.0} if self._canary else {})
        answer = self.client.act(state)
        self.counts["answers"] += 1
        self.counts[answer.source] += 1
        self.counts["late"] += answer.late
        self.took.append(answer.round_trip_ns * 1e-6)
        if not all(-1.0 <= value <= 1.0 for value in answer.action):
            self.counts["unsafe"] += 1
        if self._canary and abs(float(answer.action[0]) - canary) > 1e-6:
            self.counts["mixed"] += 1

    def _suffer(self, what: str) -> None:
        if what == "reset":
            self.client.reset()
        elif what == "breaks":  # its connection does, without a word
            channel = self.client._link._channel
            if channel is not None:
                channel.drop()
        elif what == "other process":
            session, name = self.client.session, self.client.robot
            self.client.close()
            self.client = Client(self._address, name, session=session, deadline=20.0)
        self.counts[what] += 1

    def end(self) -> None:
        self._ended.set()
        self._thread.join(60.0)
        self.client.close()


class Trouble:
    """One kind after the other.

    Attributes:
        told: how often each has come. secrets: replies with what no reply may hold.
    """

    def __init__(self, service: Service, riders: list[Rider]) -> None:
        self._service, self._riders = service, riders
        self._rng = random.Random(secrets_seed())
        self._kinds = itertools.cycle(
            ["reset", "breaks", "other process", "garbage", "look", "second"]
        )
        self.told, self.secrets = Counter[str](), 0

    def comes(self) -> None:
        kind, replies = next(self._kinds), list[str]()
        self.told[kind] += 1
        if kind == "garbage":
            garbage(self._service, self._rng, replies)
        elif kind == "look":
            look(self._service, replies)
        elif kind == "second":
            second(self._service, self._rng, len(self._riders))
        else:
            self._rng.choice(self._riders).trouble.append(kind)
        self.secrets += sum(any(secret in reply for secret in SECRETS) for reply in replies)


def garbage(service: Service, rng: random.Random, replies: list[str]) -> None:
    """Somebody who does not know the protocol, in three ways."""
    for first in (b"", handshake()):
        with contextlib.suppress(OSError):
            replies.append(http_request(service.port, first + rng.randbytes(2000), seconds=1.0))
    with contextlib.suppress(OSError):
        broken = frame(1, rng.randbytes(100)) + frame(2, rng.randbytes(4000))
        replies.append(http_request(service.port, handshake() + broken, seconds=1.0))


def look(service: Service, replies: list[str]) -> None:
    """Somebody who asks how it is."""
    for path in ("/healthz", "/readyz", "/v1/info", "/v1/breakers", "/openapi.json", "/nowhere"):
        replies.append(fetch(service.port, path)[1])


def second(service: Service, rng: random.Random, robots: int) -> None:
    """A client too many: of a robot that is held, and of one for which there is no place."""
    for name in (f"r{rng.randrange(robots)}", "one-too-many"):
        with contextlib.suppress(WmrtError):
            Client(service.unix, name, opening=0.5).close()


def soak(
    service: Service, seconds: float, robots: int, hz: float, every: float, canary: bool,
    warm_up: int, bar: Any,
) -> dict[str, Any]:  # fmt: skip
    """Readings over ``seconds``, with trouble every ``every`` seconds."""
    riders = [Rider(service.unix, f"r{i}", hz, canary, warm_up) for i in range(robots)]
    trouble = Trouble(service, riders)
    while not all(rider.ready() for rider in riders) or trouble.told.total() < seconds / every:
        trouble.comes()
        time.sleep(WARM_EVERY)
    trouble.told.clear()
    readings: list[tuple[int, int, int, int, int]] = []
    began = time.monotonic()
    read_at = trouble_at = began
    while (now := time.monotonic()) < began + seconds:
        if now >= read_at:
            read_at += seconds / READINGS
            for rider in riders:
                rider.ready()
            steps = sum(rider.counts["answers"] for rider in riders)
            found = (service.dirty(), service.files(), service.threads(), service.in_use())
            readings.append((steps, *found))
            bar(now - began)
        if now >= trouble_at:
            trouble_at += every
            trouble.comes()
        time.sleep(0.05)
    for rider in riders:
        rider.end()
    return _told(readings, riders, service) | {
        "trouble": dict(trouble.told),
        "replies_with_paths": trouble.secrets,
    }


def _told(readings: Any, riders: list[Rider], service: Service) -> dict[str, Any]:
    steps, dirty, files, threads, used = (list(column) for column in zip(*readings, strict=True))
    half = len(steps) // 2
    counts = sum((rider.counts for rider in riders), Counter[str]())
    info = service.info()
    return {
        "steps": steps[-1],
        "bytes_per_1000_steps": growth(steps, dirty),
        "bytes_per_1000_steps_ci95": uncertainty(steps, dirty),
        "in_use_bytes_per_1000_steps": growth(steps, used),
        "in_use_bytes_per_1000_steps_ci95": scatter(steps, used),
        "private_dirty_bytes": {"first": dirty[0], "half": dirty[half], "last": dirty[-1]},
        "files": {"half_max": max(files[:half]), "last_half_max": max(files[half:])},
        "threads": {"half_max": max(threads[:half]), "last_half_max": max(threads[half:])},
        "round_trip_ms": measure.summary([ms for rider in riders for ms in rider.took]),
        "counts": dict(counts),
        "refusals": info["refusals"],
        "snapshots": info["snapshots"],
        "alive": service.process.poll() is None,
        "readings": readings,
    }


def _growth(found: dict[str, Any]) -> tuple[float, float]:
    return found["bytes_per_1000_steps"], found["bytes_per_1000_steps_ci95"]


def _in_use(found: dict[str, Any]) -> dict[str, Any]:
    """The same verdict of what is in use, however it lies: holes are no leak."""
    key = "in_use_bytes_per_1000_steps"
    (own, sure), (planted, planted_sure) = ((r[key], r[f"{key}_ci95"]) for r in found.values())
    said = verdict(own, planted, sure, planted_sure)
    console().print(f"in use {said}: {own:.0f} ± {sure:.0f}, with the leak {planted:.0f}")
    told = {"in_use_verdict": said, f"planted_{key}": planted, f"planted_{key}_ci95": planted_sure}
    return told


@click.command(epilog="Example: python -m tools.service_soak --seconds 300 --hz 0")
@click.option("--seconds", default=3600.0, type=click.FloatRange(5.0), show_default=True)
@click.option("--proof", type=float, help="Seconds with the planted leak. Default: a sixth.")
@click.option("--robots", default=4, type=click.IntRange(1, 16), show_default=True)
@click.option("--hz", default=10.0, show_default=True, help="Of each robot; 0: as fast as it goes.")
@click.option("--every", default=5.0, show_default=True, help="Seconds between two troubles.")
@click.option("--warm-up", default=WARM_UP, show_default=True, help="Steps of each robot before.")
@click.option("--model", is_flag=True, help="The shipped model, in nvfp4, in place of canaries.")
@json_option
def main(
    seconds: float, proof: float | None, robots: int, hz: float, every: float, warm_up: int,
    model: bool, json_path: Path | None,
) -> None:  # fmt: skip
    """Soak a service, and prove that a leak would have been seen."""
    proof = max(seconds / 6, 20.0) if proof is None else proof
    settings: dict[str, Any] = {"robots": robots, "ping": 5.0, "snapshot_every": 5.0}
    settings |= (
        {"model": "highway", "recipe": "nvfp4", "threads": 1, "period": 0.1} if model else {}
    )
    own = ["--model"] if model else []
    found: dict[str, Any] = {}
    with progress() as display:
        for name, span, more in (("own", seconds, []), ("planted", proof, ["--leak", str(LEAK)])):
            task = display.add_task(name, total=round(span))
            with serving(*own, *more, "--in-use", snapshots="robots", **settings) as service:
                found[name] = soak(
                    service, span, robots, hz, every, not model, warm_up,
                    lambda done, task=task: display.update(task, completed=round(done)),
                )  # fmt: skip
    result, (grown, sure), (planted, planted_sure) = found["own"], *map(_growth, found.values())
    said = verdict(grown, planted, sure, planted_sure)
    results = {"verdict": said, "limit": LIMIT, "planted_bytes_per_1000_steps": planted}
    results |= {"planted_bytes_per_1000_steps_ci95": planted_sure, **result}
    results |= _in_use(found)
    results |= {"seconds": seconds, "robots": robots, "hz": hz, "every": every, "warm_up": warm_up}
    console().print(f"{said}: {grown:.0f} ± {sure:.0f} B per 1 000 steps", style="bold")
    write_result(json_path, results, **({"model": "highway", "recipe": "nvfp4"} if model else {}))
    counts = result["counts"]
    wrong = [key for key in ("mixed", "unsafe") if counts.get(key)]
    wrong += ["paths in replies"] * bool(result["replies_with_paths"])
    for key in ("files", "threads"):
        wrong += [key] * (result[key]["last_half_max"] > result[key]["half_max"])
    if said != "flat" or wrong or not result["alive"]:
        falls_short(f"{said}; {', '.join(wrong) or 'nothing else'}")


if __name__ == "__main__":
    main()
