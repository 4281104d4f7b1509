"""What one bad answer of a policy does to a simulator, without the breakers and with them.

    python tools/breaker_demo.py --json benchmarks/safety/demo.json

Pendulum-v1 takes a NaN and is NaN for good. HalfCheetah-v5 takes a command of 100 where its motors
end at 1 and charges the policy for it; after a NaN it starts anew without a word, and the return is
NaN. Needs the extra [mujoco].
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from wmrt.cli.common import console, json_option, write_result
from wmrt.control import ControlledEnv
from wmrt.core.errors import WmrtError
from wmrt.core.extras import require
from wmrt.core.types import ActionDim, ActionSpec
from wmrt.safety import Breakers, Limits

PERIOD = 0.05  # s, of both simulators
STEPS = 200
FAULT_AT = 50
#: Torque of the six motors of HalfCheetah at command 1, N m: the gears of its model file.
GEARS = {"bthigh": 120, "bshin": 90, "bfoot": 60, "fthigh": 120, "fshin": 60, "ffoot": 30}
PENDULUM = ActionSpec((ActionDim("torque", "N m", -2.0, 2.0, rate_up=40.0, rate_down=40.0),))
CHEETAH = ActionSpec(
    tuple(  # from one end to the other in four steps
        ActionDim(name, "N m", -gear, gear, rate_up=10.0 * gear, rate_down=10.0 * gear)
        for name, gear in GEARS.items()
    )
)
Action = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A policy that answers well but for ``length`` steps from `FAULT_AT` on."""

    env: str
    spec: ActionSpec
    policy: Callable[[Any, int], Action]
    fault: str
    value: float
    length: int


@dataclass(frozen=True)
class Row:
    """One episode.

    Attributes:
        bad_observations: steps after which the simulator's state was not finite.
        largest: command, as a multiple of what the motors can do; None: not a number.
        fastest: change of a command within a step, as a multiple of the rate limit; None likewise.
        trips: by level, None without breakers. state: of the breakers at the end.
        episode_return: sum of rewards, None if it is not a number.
    """

    env: str
    fault: str
    breakers: bool
    steps: int
    bad_observations: int
    largest: float | None
    fastest: float | None
    episode_return: float | None
    trips: dict[str, int] | None
    state: str | None


def balance(obs: Any, step: int) -> Action:
    """Damps the pendulum and pulls it up, in [-1, 1]; good enough to move."""
    cosine, sine, speed = (float(value) for value in obs)
    torque = -2.0 * sine - 0.5 * speed if cosine > 0 else 0.5 * math.copysign(1.0, speed)
    return np.array([max(-0.5, min(0.5, torque))], np.float32)


def gait(obs: Any, step: int) -> Action:
    """Six slow sines, within the rate limits."""
    phase = 2 * math.pi * 0.8 * PERIOD * step
    return np.array([0.5 * math.sin(phase + place) for place in range(len(GEARS))], np.float32)


CASES = (
    Case("Pendulum-v1", PENDULUM, balance, "NaN, once", math.nan, 1),
    Case("HalfCheetah-v5", CHEETAH, gait, "NaN, once", math.nan, 1),
    Case("HalfCheetah-v5", CHEETAH, gait, "100, once", 100.0, 1),
    Case("HalfCheetah-v5", CHEETAH, gait, "100 for 40 steps", 100.0, 40),
)


def run(case: Case, breakers: bool, seed: int) -> Row:
    """One episode of a case; the fault is in the first command."""
    gymnasium, mujoco = require("gymnasium", "mujoco"), require("mujoco", "mujoco")
    # Else it writes a log into the current folder, here that its model file uses an old word.
    mujoco.set_mju_user_warning(lambda message: None)
    inner = gymnasium.make(case.env, max_episode_steps=STEPS)
    if case.env == "Pendulum-v1":  # commands in [-1, 1], as everywhere in wmrt
        inner = gymnasium.wrappers.RescaleAction(inner, np.float32(-1.0), np.float32(1.0))
    spy = _spy(inner)
    guard = Breakers(Limits.from_spec(case.spec, period=PERIOD)) if breakers else None
    env = spy if guard is None else ControlledEnv(spy, breakers=guard)
    obs, _ = env.reset(seed=seed)
    total, bad = 0.0, 0
    for step in range(STEPS):
        action = case.policy(obs, step)
        if FAULT_AT <= step < FAULT_AT + case.length:
            action[0] = case.value
        obs, reward, _, _, _ = env.step(action)
        total += float(reward)
        bad += not np.isfinite(obs).all()
    env.close()
    stats = None if guard is None else guard.stats()
    return Row(
        case.env, case.fault, breakers, len(spy.sent), bad, *extremes(spy.sent, case.spec),
        total if math.isfinite(total) else None,
        None if stats is None else stats["trips"], None if stats is None else stats["state"],
    )  # fmt: skip


def _spy(env: Any) -> Any:
    """``env``, that keeps every command that reaches it in ``sent``."""
    gymnasium = require("gymnasium", "mujoco")

    class Spy(gymnasium.Wrapper):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(env)
            self.sent: list[Any] = []

        def step(self, action: Any) -> Any:
            self.sent.append(np.array(action, np.float64))
            return self.env.step(action)

    return Spy()


def extremes(sent: list[Any], spec: ActionSpec) -> tuple[float | None, float | None]:
    """Largest command over 1, and largest change over what the rate allows; None: no number."""
    deltas = np.array([dim.max_delta(PERIOD) for dim in spec.dims])  # [A, (up, down)]
    commands = np.vstack([np.zeros((1, len(spec))), *sent])
    with np.errstate(invalid="ignore"):
        change = commands[1:] - commands[:-1]
    share = np.maximum(change / deltas[:, 0], -change / deltas[:, 1])
    figures = float(np.abs(commands).max()), float(share.max())
    return tuple(each if math.isfinite(each) else None for each in figures)  # type: ignore[return-value]


def table(rows: list[Row]) -> Table:
    """One line per case."""
    made = Table("env", "fault", "breakers", "NaN states", "largest", "fastest", "return", "trips")
    for row in rows:
        trips = (
            "" if row.trips is None else ", ".join(f"{k} {n}" for k, n in row.trips.items() if n)
        )
        figures = (row.largest, row.fastest, row.episode_return)
        shown = ["not a number" if value is None else f"{value:.5g}" for value in figures]
        made.add_row(
            row.env, row.fault, "on" if row.breakers else "off",
            f"{row.bad_observations} of {row.steps}", *shown, trips,
        )  # fmt: skip
    return made


@click.command(epilog="Example: python tools/breaker_demo.py --json demo.json")
@click.option("--seed", type=click.IntRange(0), default=7, show_default=True)
@json_option
def main(seed: int, json_path: Any) -> None:
    """Drive each case twice, the policy's commands as they are and behind breakers."""
    rows = [run(case, breakers, seed) for case in CASES for breakers in (False, True)]
    console().print(table(rows))
    console().print(
        "largest: command over what the motors can do; fastest: change over the rate limit"
    )
    write_result(json_path, {"seed": seed, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    try:
        main()
    except WmrtError as error:
        click.echo(f"breaker_demo: error: {error}", err=True)
        sys.exit(2)
