"""One bench from the request to its tables, files and gates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from wmrt.cli.benching import page, show
from wmrt.cli.benching.fresh import cold_starts, memories
from wmrt.cli.benching.identity import facts, resolved
from wmrt.cli.benching.request import Request
from wmrt.cli.benching.subject import Line, Stand, packed_weights, require_room, stand
from wmrt.cli.benching.verdicts import gates, overall, shortfalls
from wmrt.cli.common import console, falls_short, plain, progress, write_result
from wmrt.core.errors import UnsupportedError
from wmrt.core.realtime import Measure, realtime
from wmrt.quant import get_recipe
from wmrt.runtime.bench.compute import nanoseconds_per_weight
from wmrt.runtime.bench.floor import Floor, NativeStream
from wmrt.runtime.bench.outcome import Row, label, ratios, row_of
from wmrt.runtime.bench.rounds import Effort, Instruments, run_rounds

Say = Callable[[str], None]


def run(request: Request, effort: Effort, out: Path | None, json_path: Path | None) -> None:
    """Measure, show, write, and judge by the gates that were given."""
    buffer = require_room(request)
    with told() as say, ExitStack() as stack:
        got = stack.enter_context(realtime(cpus(request), freeze=False)) if request.isolate else []
        made = stack.enter_context(stand(request, say))
        floor = stack.enter_context(streamed(buffer, request.threads))
        rows = measure(made, request, effort, floor, say)
        stack.close()  # memory and threads are given back before others are measured
        own = [line for line in made.lines if line.work.role == "own" and line.work.batch == 1]
        starts = cold_starts(widest(own), request, say) if request.cold else []
        memory = memories(own, request, say) if request.resident else []
    fill_resident(rows, memory)
    fill_compute(made, rows)
    results: dict[str, Any] = plain(
        {
            "subject": request.subject,
            "notes": notes(made, got),
            "noise": overall(rows),
            "gates": gates(rows, request),
            "arms": [row.figures for row in rows],
            "ratios": ratios(rows),
            "missing": [one.to_json() for one in made.missing],
            "floor": floor.to_json(),
            "cold_start": starts,
            "memory": memory,
            "isolation": [one.to_json() for one in got],
        },
        "results",
    )
    _finish(request, made, rows, results, out, json_path)


def _finish(
    request: Request,
    made: Stand,
    rows: Sequence[Row],
    results: dict[str, Any],
    out: Path | None,
    json_path: Path | None,
) -> None:
    title = f"{request.subject}: the control step"
    show.show(console(), title, rows, results)
    what = resolved(request, made, rows, results)
    write_result(
        json_path,
        results,
        device=request.device,
        model=request.subject,
        model_sha256=made.stored[0].checkpoint.weights_sha256,
        recipe=", ".join(one.name for one in made.stored),
        resolved=what,
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / page.REPORT
        page.write(path, page.render(title, rows, results, facts(made, what)))
        console().print(f"wrote {path}", markup=False, soft_wrap=True)
    short = shortfalls(results["gates"])
    if short:
        falls_short(short)


@contextmanager
def told() -> Iterator[Say]:
    """What is being done, on stderr. Drawn only when it changes: a thread that draws ten times a
    second would be in the figures."""
    with progress(auto_refresh=False) as bar:
        task = bar.add_task("", total=None)

        def say(what: str) -> None:
            bar.update(task, description=what)
            bar.refresh()

        try:
            yield say
        except BaseException:  # the error stays one line: a stopped bar leaves one of its own
            bar.live.transient = True
            raise


@contextmanager
def streamed(size: int, threads: Sequence[int]) -> Iterator[Floor]:
    """The floor's meter; without the native library it has no samples and says why."""
    try:
        stream = NativeStream(size, threads)
    except UnsupportedError as error:
        yield Floor(None, threads, str(error))
        return
    with stream:
        yield Floor(stream, threads)


def cpus(request: Request) -> list[int]:
    """As many of this process's processors as the arm with the most threads has threads."""
    return sorted(os.sched_getaffinity(0))[: max(request.threads)]


def measure(made: Stand, request: Request, effort: Effort, floor: Floor, say: Say) -> list[Row]:
    """Every arm in every mode, in rounds."""
    arms = [line.arm for line in made.lines]
    works = [line.work for line in made.lines for _ in request.rates]
    blocks = len(works) * effort.rounds
    done = 0

    def advance(name: str) -> None:
        nonlocal done
        done += 1
        say(f"measured {done} of {blocks}: {name}")

    courses = run_rounds(arms, request.rates, effort, Instruments(floor), advance)
    return [
        row_of(course, work, floor, request.deadline_ms)
        for course, work in zip(courses, works, strict=True)
    ]


def widest(lines: Sequence[Line]) -> list[Line]:
    """Of each recipe and executor, the line with the most threads."""
    found: dict[tuple[str, str], Line] = {}
    for line in sorted(lines, key=lambda line: line.arm.threads):
        found[line.arm.name, line.arm.recipe] = line
    return list(found.values())


def fill_resident(rows: Sequence[Row], memory: Sequence[dict[str, Any]]) -> None:
    """Resident bytes of each arm that was looked at in a process of its own."""
    known = {one["arm"]: one["resident"]["bytes"] for one in memory}
    for row in rows:
        row.figures["resident_bytes"] = known.get(row.label)


def fill_compute(made: Stand, rows: Sequence[Row]) -> None:
    """Milliseconds that the multiplications of a native step take with weights out of a cache."""
    weights = {
        line.arm: (get_recipe(line.arm.recipe), packed_weights(line.stored.checkpoint))
        for line in made.lines
        if line.stored is not None and line.arm.name == "native"
    }
    for row in rows:
        recipe, count = weights.get(row.course.arm, (None, 0))
        if recipe is not None and recipe.packs:
            spent = nanoseconds_per_weight(recipe, row.work.batch, row.course.arm.threads)
            row.figures["compute_floor_ms"] = spent * count / 1e6


def notes(made: Stand, got: Sequence[Measure]) -> list[str]:
    """What a reader has to know to read the figures right."""
    from wmrt.model.random_init import is_random

    found = []
    if any(is_random(one.checkpoint) for one in made.stored):
        found.append("random weights, for speed only: actions and predictions mean nothing")
    controls = [label(x.arm, x.work) for x in made.lines if x.work.role == "control"]
    if controls:
        found.append(f"control arms, judged by no gate: {'; '.join(controls)}")
    if any(line.work.role == "peer" for line in made.lines):
        found.append("peers run the linear layers of the step alone, on weights of the same shapes")
    if got:
        found.append(f"isolation: {'; '.join(map(str, got))}")
    return found
