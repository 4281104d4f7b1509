"""What a controller costs: `Controller.act` less a policy that does nothing, 20 fields a state.

    python tools/overhead.py --json benchmarks/overhead.json
    python tools/overhead.py --realtime --cpu 1

The arms take turns in rounds, so that all see the same machine.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np

from wmrt.cli.common import console, json_option, write_result
from wmrt.control import Controller, StepClock
from wmrt.core import measure
from wmrt.core.errors import WmrtError
from wmrt.core.realtime import PRIORITY, realtime
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.model.schema import StateSchema, category, numeric

PERIOD = 0.1
#: 20 fields, as a driving state has.
NUMBERS = 19
SCHEMA = StateSchema(
    {f"x{n}": numeric("m", -50.0, 50.0, required=n < 3) for n in range(NUMBERS)}
    | {"lane": category(["left", "middle", "right"])},
    neutral=(0.0, 0.0),
)
ACTIONS = ActionSpec(
    (
        ActionDim("steering", "rad", -0.06, 0.06, rate_up=0.30, rate_down=0.30),
        ActionDim("acceleration", "m/s^2", -5.0, 5.0, rate_up=15.0, rate_down=30.0),
    )
)
STATE = {f"x{n}": 1.5 * n for n in range(NUMBERS)} | {"lane": "left"}
#: Name of an arm: whether it has a watchdog, and a recorder.
ARMS: Mapping[str, tuple[bool, bool]] = {
    "direct": (False, False),
    "watchdog": (True, False),
    "direct, recorder": (False, True),
    "watchdog, recorder": (True, True),
}


class Nothing:
    """A policy whose answer was there before the question: action, chunk and prediction."""

    schema, actions = SCHEMA, ACTIONS

    def __init__(self) -> None:
        action = np.float32([0.1, -0.1])
        predicted = {f"x{n}": 0.25 * n for n in range(NUMBERS)} | {"lane": "left"}
        self._step = SimpleNamespace(
            action=action, chunk=np.tile(action, (8, 1)), predicted=predicted
        )

    def reset(self) -> None:
        """It remembers nothing."""

    def step(self, state: Any, previous_action: Any) -> Any:
        return self._step


@contextmanager
def controllers(folder: Path) -> Iterator[dict[str, Controller]]:
    """One for each arm, with a deadline that none misses."""
    with ExitStack() as stack:
        made = {}
        for name, (watchdog, recorded) in ARMS.items():
            recorder: Any = None
            if recorded:
                from wmrt.control.recording import FileRecorder

                file = folder / f"{name.replace(', ', '-')}.mcap"
                recorder = stack.enter_context(FileRecorder(file))
            controller = Controller(
                Nothing(), PERIOD, 60.0 if watchdog else math.inf, clock=StepClock(PERIOD),
                recorder=recorder, watchdog=watchdog,
            )  # fmt: skip
            stack.callback(controller.close)
            made[name] = controller
        yield made


def timed(call: Callable[[], object], count: int) -> list[int]:
    """Nanoseconds of ``count`` calls, one by one."""
    timer, times = time.perf_counter_ns, [0] * count
    for n in range(count):
        began = timer()
        call()
        times[n] = timer() - began
    return times


def compare(rounds: int, steps: int) -> dict[str, Any]:
    """Microseconds of `act` by arm, with the policy's own median taken off; the first round, in
    which threads start and caches fill, is not counted."""
    policy, previous = Nothing(), np.zeros(2, np.float32)
    times: dict[str, list[int]] = {name: [] for name in ("policy", *ARMS)}
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder, controllers(Path(folder)) as made:
        calls: dict[str, Callable[[], object]] = {"policy": lambda: policy.step(STATE, previous)}
        calls |= {
            name: (lambda controller=controller: controller.act(STATE))  # type: ignore[misc]
            for name, controller in made.items()
        }
        for n in range(-1, rounds):
            for name, call in calls.items():
                new = timed(call, steps)
                if n >= 0:
                    times[name] += new
        late = {name: controller.stats()["deadline_misses"] for name, controller in made.items()}
    own = measure.percentile(sorted(times["policy"]), 50)
    arms = []
    for name in ARMS:
        summary = measure.summary([(ns - own) / 1000 for ns in times[name]])
        arms.append({"name": name, "overhead_us": summary, "deadline_misses": late[name]})
    return {
        "fields": NUMBERS + 1,
        "policy_us": own / 1000,
        "arms": arms,
        "load": {"before": before[0], "after": os.getloadavg()[0], "cpus": os.cpu_count()},
    }


def show(results: Mapping[str, Any]) -> None:
    for arm in results["arms"]:
        us = arm["overhead_us"]
        console().print(f"{arm['name']:>20}  p50 {us['p50']:7.1f} us   p99 {us['p99']:9.1f} us")
    load = results["load"]
    console().print(
        f"{'load':>20}  {load['before']:.1f} to {load['after']:.1f} on {load['cpus']} processors; "
        f"{', '.join(map(str, results['realtime'])) or 'the ordinary scheduler'}",
        soft_wrap=True,
    )


@click.command(epilog="Example: python tools/overhead.py --rounds 20 --realtime")
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(1))
@click.option("--steps", default=1000, show_default=True, type=click.IntRange(1), help="A round.")
@click.option("--realtime", "real", is_flag=True, help="SCHED_FIFO, locked memory, frozen garbage.")
@click.option("--cpu", type=click.IntRange(0), help="Run on this processor alone.")
@json_option
def main(rounds: int, steps: int, real: bool, cpu: int | None, json_path: Path | None) -> None:
    """Measure what a controller costs on top of its policy."""
    with ExitStack() as stack:
        got = stack.enter_context(
            realtime(
                None if cpu is None else [cpu], priority=PRIORITY if real else None, lock=real,
                freeze=real,
            )
        )  # fmt: skip
        results = compare(rounds, steps) | {"realtime": [str(one) for one in got]}
    show(results)
    write_result(json_path, results)


if __name__ == "__main__":
    try:
        main()
    except WmrtError as error:
        click.echo(f"overhead: error: {error}", err=True)
        sys.exit(2)
