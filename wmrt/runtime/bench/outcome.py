"""Figures of a run: one row per arm and mode, and the ratios between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from wmrt.core import measure
from wmrt.runtime.bench.arms import Arm
from wmrt.runtime.bench.deadline import find_misses
from wmrt.runtime.bench.floor import Floor
from wmrt.runtime.bench.noise import Verdict, judge
from wmrt.runtime.bench.rounds import Course


@dataclass(frozen=True)
class Work:
    """What an arm is asked to do, beside how it does it.

    Args:
        network: hash of the shapes that are multiplied; the same work has the same one.
        device: torch device. batch: robots per step.
        pages: asked for, where the weights of the native executor lie.
        role: ``own``, ``control`` (a slow reference beside the own ones) or ``peer``.
    """

    network: str
    device: str = "cpu"
    batch: int = 1
    role: str = "own"
    pages: str = "auto"


@dataclass(frozen=True)
class Row:
    """One arm in one mode, with its figures as they go into the result file."""

    course: Course
    work: Work
    verdict: Verdict
    figures: dict[str, Any]

    @property
    def label(self) -> str:
        return label(self.course.arm, self.work)


def label(arm: Arm, work: Work) -> str:
    """An arm in a table: ``native nvfp4, 2 threads, batch 8``."""
    threads = f"{arm.threads} thread{'s' * (arm.threads > 1)}"
    batch = "" if work.batch == 1 else f", batch {work.batch}"
    pages = "" if work.pages == "auto" else f", {work.pages} pages"
    return f"{arm.name} {arm.recipe}, {threads}{batch}{pages}"


def row_of(course: Course, work: Work, floor: Floor, deadline_ms: float | None) -> Row:
    """Figures of one course.

    Args:
        deadline_ms: from a step's tick to its end; None: the period of a paced course, and none
            for one back to back.
    """
    arm, recording = course.arm, course.recording
    step_ms = in_ms(recording.column("duration"))
    verdict = judge(recording, floor, arm.threads)
    floor_ms = floor.floor_ms(arm.read_bytes, arm.threads)
    times = _distribution(step_ms)
    period_ms = None if course.rate is None else float(1000 / course.rate)
    deadline_ms = period_ms if deadline_ms is None else deadline_ms
    misses = None if deadline_ms is None else find_misses(recording, round(deadline_ms * 1e6))
    segments = {s: _distribution(in_ms(recording.segment(s))) for s in recording.segments}
    figures = {
        "name": arm.name,
        "recipe": arm.recipe,
        "threads": arm.threads,
        "batch": work.batch,
        "pages": work.pages,
        "role": work.role,
        "mode": course.mode,
        "rate_hz": None if course.rate is None else float(course.rate),
        "step_ms": times,
        "segments_ms": segments,
        "wake_up_ms": None
        if course.rate is None
        else _distribution(in_ms(recording.column("late"))),
        "enqueue_ms": _enqueue(segments) if work.device.startswith("cuda") else None,
        "floor_ms": floor_ms,
        "ratio_to_floor": None if floor_ms is None else times["p50"] / floor_ms,
        "compute_floor_ms": None,
        "read_bytes": arm.read_bytes,
        "deadline": deadline_ms,
        "deadline_misses": None if misses is None else len(misses.steps),
        "misses": None if misses is None else misses.to_json(),
        "skipped_ticks": sum(recording.column("skipped")),
        "noise": verdict.to_json(),
        "round_ms": [measure.median(in_ms(r)) for r in recording.rounds().values()],
        "resident_bytes": None,
        "detail": dict(arm.detail),
    }
    return Row(course, work, verdict, figures)


def _enqueue(segments: Mapping[str, Any]) -> Any:
    """What the host spends on queuing: its own part where an arm tells it, else all it computes."""
    return segments.get("enqueue", segments.get("network"))


def in_ms(nanoseconds: Sequence[int]) -> list[float]:
    return [value / 1e6 for value in nanoseconds]


def _distribution(samples: Sequence[float]) -> dict[str, Any]:
    low, high = measure.quartiles(samples) if samples else (None, None)
    return {**measure.summary(samples), "q1": low, "q3": high}


def ratios(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every two rows of one mode: the time of ``arm`` over that of ``to``, round by round.

    ``differs`` says whether the interquartile ranges of their steps do not overlap; else there is
    no difference to speak of. A pair whose work is not the same is marked not comparable, with
    the reason, and has no figures.
    """
    found = []
    for first, second in combinations(rows, 2):
        if first.course.rate == second.course.rate:
            found.append({"arm": second.label, "to": first.label, **_pair(first, second)})
    return found


def _pair(base: Row, other: Row) -> dict[str, Any]:
    mode = {"mode": base.course.mode}
    why = not_comparable(base, other)
    if why is not None:
        return {**mode, "comparable": False, "reason": why}
    times = [
        [measure.median(r) for r in x.course.recording.rounds().values()] for x in (base, other)
    ]
    each = [b / a for a, b in zip(*times, strict=True)]
    low, high = measure.quartiles(each)
    a, b = base.figures["step_ms"], other.figures["step_ms"]
    return {
        **mode,
        "comparable": True,
        "median": measure.median(each),
        "iqr": [low, high],
        "differs": a["q3"] < b["q1"] or b["q3"] < a["q1"],
    }


def not_comparable(a: Row, b: Row) -> str | None:
    """Why two rows cannot be compared, or None.

    The network and the device have to be the same. Number of threads and of robots may be varied,
    one of them at a time, and only within one arm.
    """
    same: Mapping[str, tuple[Any, Any]] = {
        "network": (a.work.network, b.work.network),
        "device": (a.work.device, b.work.device),
    }
    scaled: Mapping[str, tuple[Any, Any]] = {
        "threads": (a.course.arm.threads, b.course.arm.threads),
        "batch": (a.work.batch, b.work.batch),
    }
    for name, (x, y) in same.items():
        if x != y:
            return f"{name} {x} and {y}"
    varied = [f"{name} {x} and {y}" for name, (x, y) in scaled.items() if x != y]
    one = (a.course.arm.name, a.course.arm.recipe) == (b.course.arm.name, b.course.arm.recipe)
    if len(varied) > 1 or (varied and not one):
        return " and ".join(varied) + (
            "" if one else f" of {a.course.arm.name}, {b.course.arm.name}"
        )
    return None
