"""What the prediction monitor finds in closed loop: frozen and drifting sensors, and false alarms.

    python tools/monitor.py --clean 60 --faulty 20 --json benchmarks/monitor.json

The shipped model drives held-out seeds with its monitor on. Clean drives count false alarms. In a
faulty drive a sensor freezes, or drifts, from a random step on; the drive ends at the alarm, or
after 5 s without one. A sensor whose true reading stays where it froze has not failed yet: such a
drive is counted as still, not as missed. A drive that alarmed, or ended, before its fault counts
for nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import click
import numpy as np

from wmrt.cli.common import console, falls_short, json_option, track, write_result
from wmrt.cli.driving.environment import open_environment
from wmrt.control import Controller, Monitor, StepClock
from wmrt.core.seeds import HELD_OUT

#: Steps a fault may go unnoticed, and in which of a drive it begins.
WINDOW, BEGINS = 50, (40, 150)
#: A frozen reading has failed when it is off by more than so many scales.
MOVED = 10.0
EGO = ("ego_speed", "lane_offset", "heading")
#: Name to the fields that freeze, or to a field and its drift in units per second.
FROZEN: dict[str, tuple[str, ...]] = {
    "everything": (),
    "ego": EGO,
    "speed": ("ego_speed",),
    "front": ("front_gap", "front_dv"),
    "front gap": ("front_gap",),
    "rear": ("rear_gap", "rear_dv"),
    "left front": ("left_front_gap", "left_front_dv"),
}
DRIFTS = {
    "front gap +1 m/s": ("front_gap", 1.0),
    "front gap +3 m/s": ("front_gap", 3.0),
    "speed -0.5 m/s^2": ("ego_speed", -0.5),
}

Fault = Callable[[dict[str, Any], Mapping[str, Any], int], dict[str, Any]]


class Loop:
    """One car with a monitor, whose sensors can be made to fail."""

    def __init__(self, recipe: str, env_name: str, threads: int) -> None:
        from wmrt.runtime import WorldModel

        self.env = open_environment(env_name)
        self.model = WorldModel.from_pretrained("highway", recipe=recipe, threads=threads)
        self.scales = {
            name: limits.scale
            for name, limits in Monitor.of(self.model, "highway").calibration.columns.items()
        }

    def drive(self, seed: int, fault: Fault | None = None, begins: int = 0) -> dict[str, Any]:
        """One drive; with a ``fault`` from step ``begins`` on, until it is found or time is up."""
        controller = self._controller()
        _, info = self.env.reset(seed=seed)
        held: dict[str, Any] = {}
        moved: int | None = None
        rewards, steps, ended = [], 0, False
        while not ended:
            state, since = info["state"], steps - begins
            if fault is not None and since >= 0:
                held = held or dict(state)
                shown = fault(held, state, since)
                if moved is None and self._off(state, shown):
                    moved = since
            else:
                shown = state
            action = controller.act(shown)
            alarms = controller.stats()["monitor"]
            if fault is not None and (alarms["alarms"] or since >= WINDOW):
                break
            _, reward, terminated, truncated, info = self.env.step(action)
            rewards.append(float(reward))
            ended = terminated or truncated
            steps += 1
        return {
            "seed": seed, "steps": steps, "alarms": alarms["alarms"], "fields": alarms["fields"],
            "return": math.fsum(rewards), "crashed": bool(info.get("crashed")),
            "early": fault is not None and bool(alarms["alarms"]) and steps < begins,
            "over": fault is not None and ended and steps <= begins,
            "delay": steps - begins if alarms["alarms"] else None, "moved": moved,
        }  # fmt: skip

    def _controller(self) -> Controller:
        env, neutral = self.env, tuple(self.model.schema.neutral)

        def fallback(state: Mapping[str, Any] | None, last: tuple[float, ...]) -> Any:
            return neutral if state is None else env.rule_action(state, last)

        controller = Controller(
            self.model, env.period, math.inf, fallback=fallback, clock=StepClock(env.period),
            monitor=Monitor.of(self.model, "highway"),
        )  # fmt: skip
        controller.reset()
        return controller

    def _off(self, true: Mapping[str, Any], shown: Mapping[str, Any]) -> bool:
        return any(
            abs(true[name] - shown[name]) > MOVED * scale for name, scale in self.scales.items()
        )


def frozen(fields: tuple[str, ...]) -> Fault:
    """``fields`` (all, if none) stay as they were."""

    def show(held: dict[str, Any], state: Mapping[str, Any], since: int) -> dict[str, Any]:
        return {**state, **({name: held[name] for name in fields} if fields else held)}

    return show


def drift(field: str, rate: float, period: float) -> Fault:
    """``field`` moves away from the truth by ``rate`` per second, within its range."""

    def show(held: dict[str, Any], state: Mapping[str, Any], since: int) -> dict[str, Any]:
        return {**state, field: state[field] + rate * since * period}

    return show


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Drives with a fault that showed: found, and how many steps after it began."""
    counted = [row for row in rows if not (row["early"] or row["over"])]
    failed = [row for row in counted if row["moved"] is not None or row["delay"] is not None]
    delays = sorted(row["delay"] for row in failed if row["delay"] is not None)
    return {
        "drives": len(rows),
        "false_alarm_before": sum(row["early"] for row in rows),
        "over_before": sum(row["over"] for row in rows),
        "still": len(counted) - len(failed),
        "found": len(delays),
        "missed": len(failed) - len(delays),
        "delay_steps_p50": statistics.median(delays) if delays else None,
        "delay_steps_p90": delays[math.ceil(0.9 * len(delays)) - 1] if delays else None,
        "delay_steps_max": delays[-1] if delays else None,
    }


@click.command()
@click.option("--clean", default=60, type=click.IntRange(1), show_default=True, help="Drives.")
@click.option("--faulty", default=20, type=click.IntRange(1), show_default=True, help="Per fault.")
@click.option("--recipe", default="nvfp4", show_default=True)
@click.option("--env", "env_name", default="wmrt/Highway-v0", show_default=True)
@click.option("--threads", default=1, type=click.IntRange(1), show_default=True)
@json_option
def main(clean: int, faulty: int, recipe: str, env_name: str, threads: int, json_path: Any) -> None:
    loop = Loop(recipe, env_name, threads)
    faults = {name: frozen(fields) for name, fields in FROZEN.items()}
    faults |= {name: drift(*how, loop.env.period) for name, how in DRIFTS.items()}
    rows = [loop.drive(seed) for seed in track(HELD_OUT[:clean], "clean drives")]
    broken: dict[str, list[dict[str, Any]]] = {}
    for name, fault in faults.items():
        seeds = HELD_OUT[1_000 : 1_000 + faulty]
        broken[name] = [
            loop.drive(seed, fault, int(np.random.default_rng([seed, 0xF0]).integers(*BEGINS)))
            for seed in track(seeds, name)
        ]
    alarmed = [row for row in rows if row["alarms"]]
    steps = sum(row["steps"] for row in rows)
    results = {
        "false_alarms": {
            "drives": len(rows),
            "drives_with_alarm": len(alarmed),
            "steps": steps,
            "first_alarms_per_step": len(alarmed) / steps,
            "calibrated": dict(Monitor.of(loop.model, "highway").calibration.false_alarms),
            "alarmed": alarmed,
        },
        "faults": {name: {**summary(found), "rows": found} for name, found in broken.items()},
        "seeds": {"clean": [HELD_OUT[0], HELD_OUT[clean - 1]], "faulty_first": HELD_OUT[1_000]},
    }
    _show(results)
    write_result(
        json_path,
        results,
        model="highway",
        model_sha256=loop.model.weights_sha256,
        recipe=recipe,
        resolved=loop.model.report().resolved,
    )
    if any(one["missed"] for name, one in results["faults"].items() if name == "everything"):
        falls_short("a sensor suite that froze as a whole was missed")


def _show(results: dict[str, Any]) -> None:
    from rich.table import Table

    rate = results["false_alarms"]
    console().print(
        f"clean: {rate['drives_with_alarm']} of {rate['drives']} drives alarmed "
        f"({rate['first_alarms_per_step']:.1g} a step)"
    )
    table = Table("fault", "found", "missed", "still", "delay p50, p90, max in steps")
    for name, one in results["faults"].items():
        spread = ", ".join(str(one[f"delay_steps_{key}"]) for key in ("p50", "p90", "max"))
        table.add_row(name, str(one["found"]), str(one["missed"]), str(one["still"]), spread)
    console().print(table)


if __name__ == "__main__":
    main()
