"""What a controller does while something around it fails: one line for each fault.

    python tools/fault_matrix.py --json benchmarks/safety/faults.json

The shipped model drives a car for 4 s, then 2 s with the fault, then until it drives again, 10 s at
most. Every action is checked against the actuators' own limits and the actions sent before, not
against anything the breakers say. ``stall`` runs in real time behind the watchdog, the others on a
clock that the tool moves.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from tools.loop_faults import FAULTS, Breakable, Scene
from wmrt.cli.common import console, falls_short, json_option, track, write_result
from wmrt.cli.driving.environment import open_environment
from wmrt.control import Controller, Monitor
from wmrt.control.recording import FileRecorder
from wmrt.core.clock import ManualClock, SystemClock
from wmrt.core.errors import WmrtError
from wmrt.core.seeds import HELD_OUT
from wmrt.core.types import ActionSpec

BEFORE, DURING, AFTER = 40, 20, 100
#: A difference in float32 between what is sent and what may be.
SLACK = 1e-6
PASSING = ("policy", "planned", "clamped", "consensus")


@dataclass
class Row:
    """What came of a fault.

    Attributes:
        raised: calls of act that raised. unsafe: actions not finite, out of range or too fast.
        largest, fastest: of all actions; command, and change over what the time allowed.
        sources, causes: while the fault lasted: where actions came from, what the breakers noted.
        state: of the breakers at its end.
        again: steps after it until the policy drove; None: never.
        note: what else is to be said.
    """

    fault: str
    raised: int = 0
    unsafe: int = 0
    largest: float = 0.0
    fastest: float = 0.0
    sources: dict[str, int] = field(default_factory=dict)
    causes: dict[str, int] = field(default_factory=dict)
    state: str = ""
    again: int | None = None
    note: str = ""


class Witness:
    """Checks what leaves by its own record."""

    def __init__(self, spec: ActionSpec, period: float, row: Row) -> None:
        self._spec, self._period, self._row = spec, period, row
        self._last: list[float] = [0.0] * len(spec)
        self._at: int | None = None

    def see(self, action: Any, now_ns: int) -> None:
        row, values = self._row, [float(value) for value in action]
        dt = self._period if self._at is None else (now_ns - self._at) * 1e-9
        dt = min(max(dt, 0.0), self._period)
        fits = all(math.isfinite(value) and abs(value) <= 1.0 for value in values)
        for dim, before, value in zip(self._spec.dims, self._last, values, strict=True):
            up, down = dim.max_delta(dt)
            change = value - before
            allowed = up if change > 0 else down
            fits = fits and abs(change) <= allowed + SLACK
            if allowed > 0:
                row.fastest = max(row.fastest, round(abs(change) / allowed, 6))
            row.largest = max(row.largest, round(abs(value), 6))
        row.unsafe += not fits
        self._last, self._at = values, now_ns


@contextlib.contextmanager
def recording(fault: str) -> Iterator[FileRecorder | None]:
    """A recorder whose disk is full 8 KiB after its beginning, for the fault that is about it."""
    if "disk" not in fault:
        yield None
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tempfile.TemporaryDirectory() as folder:
        recorder = FileRecorder(Path(folder) / "drive.mcap", flush=0.01)
        try:
            yield recorder
        finally:
            recorder.close()
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill_disk(recorder: FileRecorder) -> None:
    """No file of this process grows beyond 8 KiB more than the recording has by now."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    room = os.stat(recorder.path).st_size + (1 << 13)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))


def failing_fallback(state: Any, last: Any) -> Any:
    raise RuntimeError("the fallback fails")


class Run:
    """One fault from beginning to end."""

    def __init__(self, fault: str, env: Any, model: Any, recorder: FileRecorder | None) -> None:
        self.row = Row(fault)
        self._fault, self._env = FAULTS[fault], env
        real = fault == "policy stalls"
        clock: Any = SystemClock() if real else ManualClock(10**12)
        self._scene = Scene(clock, env.period)
        fallback = failing_fallback if "fallback" in fault else None
        self._controller = Controller(
            Breakable(model, self._scene), env.period, env.period * 0.8 if real else math.inf,
            fallback=fallback, recorder=recorder, clock=clock, max_age=2 * env.period,
            monitor=Monitor.of(model, "highway"),
        )  # fmt: skip
        self._real, self._recorder = real, recorder
        self._witness = Witness(env.action_spec, env.period, self.row)

    def go(self, seed: int) -> Row:
        row, controller = self.row, self._controller
        if self._recorder is not None:
            fill_disk(self._recorder)
        _, info = self._env.reset(seed=seed)
        controller.reset()
        for step in range(BEFORE + DURING + AFTER):
            during = BEFORE <= step < BEFORE + DURING
            info = self._step(info["state"], step - BEFORE if during else None)
            if step == BEFORE + DURING - 1:
                row.state = controller.breakers.state.value
            outcome = controller.last
            if step >= BEFORE + DURING and outcome is not None and outcome.source in PASSING:
                row.again = step - BEFORE - DURING
                break
        controller.close()
        if self._recorder is not None:
            time.sleep(0.2)  # the writing thread meets the end of the disk
            told = self._recorder.stats()
            why = str(told["stopped"]).rpartition(": ")[2]  # without the folder's name
            row.note = f"recording stopped: {why}; {told['lost']} entries lost"
        return row

    def _step(self, state: dict[str, Any], at: int | None) -> dict[str, Any]:
        """A period: look, let the fault happen, act, drive on."""
        scene, controller, row = self._scene, self._controller, self.row
        if self._real:
            time.sleep(scene.period)
        else:
            scene.clock.advance(scene.period)
        scene.state, scene.captured_ns = dict(state), scene.clock.now_ns()
        scene.broken, scene.calls = "", 1
        if at is not None:
            self._fault(scene, at)
        before = dict(controller.breakers.stats()["counts"])
        action: Any = None
        for call in range(scene.calls):
            captured = scene.captured_ns + call if scene.calls > 1 else scene.captured_ns
            if scene.calls > 1:
                scene.clock.advance(1e-4)
            try:
                action = controller.act(scene.state, captured)
            except Exception:  # the very thing that must not happen: counted
                row.raised += 1
                continue
            outcome = controller.last
            self._witness.see(action, scene.clock.now_ns() if outcome is None else outcome.now_ns)
            if at is not None and outcome is not None:
                row.sources[outcome.source] = row.sources.get(outcome.source, 0) + 1
        if at is not None:
            causes = Counter(controller.breakers.stats()["counts"]) - Counter(before)
            row.causes = dict(Counter(row.causes) + causes)
        scene.past.append((dict(state), scene.captured_ns))
        return dict(self._env.step(action)[4])


def table(rows: list[Row]) -> Table:
    made = Table("fault", "unsafe", "fastest", "actions from", "noted", "state", "again after")
    for row in rows:
        said = [
            ", ".join(f"{k} {n}" for k, n in part.items()) for part in (row.sources, row.causes)
        ]
        again = "never" if row.again is None else f"{row.again} steps"
        made.add_row(row.fault, str(row.unsafe), f"{row.fastest:.3f}", *said, row.state, again)
    return made


@click.command(epilog="Example: python tools/fault_matrix.py --json faults.json")
@click.option("--seed", type=click.IntRange(0), default=HELD_OUT[0], show_default=True)
@json_option
def main(seed: int, json_path: Any) -> None:
    """Drive once under each fault; status 1 if an action was unsafe or act raised."""
    from wmrt.runtime import WorldModel

    env = open_environment("wmrt/Highway-v0")
    model = WorldModel.from_pretrained("highway", recipe="nvfp4", threads=1)
    rows = []
    for fault in track(list(FAULTS), "faults"):
        with recording(fault) as recorder:
            model.reset()
            rows.append(Run(fault, env, model, recorder).go(seed))
    console().print(table(rows))
    for row in rows:
        if row.note:
            console().print(f"{row.fault}: {row.note}", markup=False)
    write_result(json_path, {"seed": seed, "rows": [asdict(row) for row in rows]})
    wrong = [row.fault for row in rows if row.unsafe or row.raised]
    if wrong:
        falls_short(f"unsafe under: {', '.join(wrong)}")


if __name__ == "__main__":
    try:
        main()
    except WmrtError as error:
        click.echo(f"fault_matrix: error: {error}", err=True)
        sys.exit(2)
