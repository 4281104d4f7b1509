"""A model in a fresh process: how long until its first action, and what it keeps in memory.

``python -m wmrt.runtime.bench.fresh REQUEST`` is that process; `cold_start` and `memory` start it
and read its answer. A process of its own, because a second start is never cold, and because
resident memory is the difference of two readings.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from wmrt.core import measure
from wmrt.core.errors import WmrtError
from wmrt.model.checkpoint import Checkpoint, load_checkpoint
from wmrt.model.locate import WEIGHTS_FILE
from wmrt.model.verdicts import is_verified, key_of
from wmrt.quant import get_recipe
from wmrt.quant.ledger import Figure, Ledger
from wmrt.quant.resident import measure_resident
from wmrt.runtime.bench.flat import flatness
from wmrt.runtime.bench.model import build_model
from wmrt.runtime.capacity import estimate, stored_layout, stored_recipe
from wmrt.runtime.probe import account, formats_of, random_states, small_checkpoint

#: Steps before resident memory is read.
STEPS = 100


@dataclass(frozen=True)
class Subject:
    """What runs in the fresh process: a checkpoint folder, and how."""

    folder: str
    recipe: str | None
    executor: str
    threads: int
    device: str = "cpu"
    pages: str = "auto"


class FreshError(WmrtError):
    """The fresh process ended without an answer; the message has its last words."""


def cold_start(subject: Subject, verify: str, times: int = 3) -> dict[str, Any]:
    """Seconds from opening the checkpoint to its first action, each the median of ``times``
    processes; the page cache is warm.

    Keys: ``first_action_s`` = ``load_s`` + ``first_step_s``; ``start_and_imports_s``, from the
    start of the process on, comes before them and is not in it; ``verified``: whether the file's
    hash was known to be right, so that nothing was hashed; ``layout`` it is stored in;
    ``converted``: whether the weights had to be rearranged.
    """
    runs = [_ask("cold", subject, verify) for _ in range(times)]
    seconds = [key for key in runs[0] if key.endswith("_s")]
    middle = {key: measure.median([run[key] for run in runs]) for key in seconds}
    return {**middle, **{key: runs[0][key] for key in runs[0] if key not in seconds}, "runs": times}


def memory(subject: Subject, flat_steps: int = 0) -> dict[str, Any]:
    """Resident memory after 100 steps, as `wmrt.runtime.probe.account` gives it, the ledger's total
    and their ratio; with ``flat_steps`` also `wmrt.runtime.bench.flat.flatness` over so many."""
    return _ask("memory", subject, str(flat_steps))


def _ask(what: str, subject: Subject, how: str) -> dict[str, Any]:
    request = json.dumps(
        {"what": what, "how": how, "started_ns": time.monotonic_ns(), **asdict(subject)}
    )
    command = [sys.executable, "-m", "wmrt.runtime.bench.fresh", request]
    environment = {**os.environ, "OMP_NUM_THREADS": str(subject.threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise FreshError(f"a fresh process ended with status {done.returncode}: {last[0]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    if "error" in answer:
        raise FreshError(f"in a fresh process: {answer['error']}")
    return answer


def main(request: str) -> dict[str, Any]:
    """The child's work."""
    imported = time.monotonic_ns()  # the same clock in every process
    asked: dict[str, Any] = json.loads(request)
    what, how, started = (asked.pop(key) for key in ("what", "how", "started_ns"))
    subject = Subject(**asked)
    try:
        if what == "cold":
            return {"start_and_imports_s": (imported - started) / 1e9, **_cold(subject, how)}
        return _memory(subject, int(how))
    except WmrtError as error:
        return {"error": str(error)}


def _cold(subject: Subject, verify: Any) -> dict[str, Any]:
    begin = time.perf_counter_ns()
    checkpoint = load_checkpoint(subject.folder, verify=verify)
    model = _build(subject, checkpoint)
    loaded = time.perf_counter_ns()
    model.step(random_states(checkpoint.schema, 1)[0])
    end = time.perf_counter_ns()
    assert checkpoint.weights_sha256 is not None  # it was loaded
    known = is_verified(key_of(Path(subject.folder) / WEIGHTS_FILE, checkpoint.weights_sha256))
    return {
        "load_s": (loaded - begin) / 1e9,
        "first_step_s": (end - loaded) / 1e9,
        "first_action_s": (end - begin) / 1e9,
        "verified": verify == "cached" and known,
        "layout": stored_layout(checkpoint),
        "converted": bool(model.report().layout["converted"]),
    }


def _memory(subject: Subject, flat_steps: int) -> dict[str, Any]:
    weights = Path(subject.folder) / WEIGHTS_FILE
    ledger = _ledger(subject)  # first: 60 MB of torch come with it, and stay
    before = measure_resident([weights])
    checkpoint = load_checkpoint(subject.folder)
    states = random_states(checkpoint.schema, STEPS)
    formats = formats_of(checkpoint, subject.recipe or "")
    _warm(_build(subject, small_checkpoint(checkpoint), formats), states)
    gc.collect()
    ready = measure_resident([weights])
    model = _build(subject, checkpoint)
    del checkpoint  # as for anyone who loads a model: its mapping goes unless the model uses it
    _warm(model, states)
    gc.collect()
    found = account(before, ready, measure_resident([weights]))
    held = replace(ledger, workspace=Figure(**found["workspace"])).total.bytes
    resident = found["resident"]["bytes"]
    known = held is not None and resident is not None
    return {
        **found,
        "ledger_bytes": held,
        "ratio_to_ledger": resident / held if known else None,
        "flat": _flat(model, states, weights, flat_steps),
    }


def _ledger(subject: Subject) -> Ledger:
    checkpoint = load_checkpoint(subject.folder)
    packed = checkpoint.quantization is not None
    recipe = stored_recipe(checkpoint) if packed else get_recipe(subject.recipe or "bf16")
    return estimate(checkpoint, recipe, stored_layout(checkpoint), subject.executor)


def _build(subject: Subject, checkpoint: Checkpoint, recipe: Any = None) -> Any:
    asked, s = recipe or subject.recipe, subject
    pages = s.pages if recipe is None else "auto"  # another model, to warm up
    return build_model(checkpoint, asked, s.executor, s.threads, s.device, pages)


def _warm(model: Any, states: list[dict[str, Any]]) -> None:
    for state in states:
        model.step(state)


def _flat(model: Any, states: list[dict[str, Any]], weights: Path, steps: int) -> Any:
    if not steps:
        return None
    turn = 0

    def step() -> None:
        nonlocal turn
        model.step(states[turn])
        turn = (turn + 1) % len(states)

    return flatness(step, lambda: measure_resident([weights]).resident.bytes, steps)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
