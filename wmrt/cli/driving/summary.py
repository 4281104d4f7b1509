"""From episodes to the figures of a result: ``results.summary`` and the latency histogram."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wmrt.cli.driving.episode import LEVELS, Episode, milliseconds
from wmrt.cli.driving.reel import Reel
from wmrt.core import measure

_COUNTS = ("deadline_misses", "fallback_steps", "degraded_steps", "openings")

_SPANS: dict[str, Callable[[list[float]], float]] = {
    "p50": statistics.median,
    "p99": max,
    "max": max,
}


def summarise(
    rows: Sequence[dict[str, Any]],
    step_ns: Sequence[int],
    act_ns: Sequence[int],
    *,
    jobs: int = 1,
    resident_bytes: int | None = None,
) -> dict[str, Any]:
    """``results.summary`` of all episodes.

    Means are over episodes, so that each seed counts once; half-widths are 95%. ``distance_m`` is
    the mean of an episode. ``trips`` and the counts are steps, None where no breakers stood, and
    deadline misses also where no deadline was enforced. ``step_ms`` is the policy's own step,
    ``act_ms`` everything from state to action, ``channels`` each consensus channel's votes and cost
    (the median of the episodes' p50, the largest p99 and max), empty without any. ``monitor`` is
    what the prediction monitor found, None without one.
    """
    mean_return, return_ci = measure.mean_ci95([row["return"] for row in rows])
    mean_speed, speed_ci = measure.mean_ci95([row["mean_speed"] for row in rows])
    controlled = all(row["trips"] is not None for row in rows)
    summary: dict[str, Any] = {
        "episodes": len(rows),
        "steps": sum(row["steps"] for row in rows),
        "return_mean": mean_return,
        "return_ci95": return_ci,
        "collisions": sum(row["crashed"] for row in rows),
        "collision_rate": sum(row["crashed"] for row in rows) / len(rows),
        "offroad_rate": sum(row["offroad"] for row in rows) / len(rows),
        "mean_speed": mean_speed,
        "mean_speed_ci95": speed_ci,
        "distance_m": measure.mean_ci95([row["distance_m"] for row in rows])[0],
        "trips": None,
        **dict.fromkeys(_COUNTS),
        "channels": {},
        "monitor": None,
        "step_ms": measure.summary(milliseconds(step_ns)),
        "act_ms": measure.summary(milliseconds(act_ns)),
        "latency": "one process" if jobs == 1 else f"shared cores ({jobs} processes)",
        "resident_bytes": resident_bytes,
    }
    if controlled:
        summary["trips"] = {str(n): sum(row["trips"][str(n)] for row in rows) for n in LEVELS}
        summary.update({key: _total([row[key] for row in rows]) for key in _COUNTS})
        if all(row["monitor"] is not None for row in rows):
            summary["monitor"] = _monitor([row["monitor"] for row in rows])
        told = [row["channels"] for row in rows]
        summary["channels"] = {name: _channel([c[name] for c in told]) for name in told[0]}
    return summary


def _monitor(told: Sequence[dict[str, Any]]) -> dict[str, int]:
    """What the prediction monitor found over all episodes."""
    sums = {key: sum(one[key] for one in told) for key in ("compared", "alarms", "failures")}
    return {**sums, "episodes_with_alarm": sum(one["alarms"] > 0 for one in told)}


def _channel(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One channel over all episodes; a figure is None where no episode has it."""
    merged: dict[str, Any] = {key: told[0][key] for key in ("every", "resident_bytes")}
    merged.update({key: sum(t[key] for t in told) for key in ("votes", "failures", "late")})
    for key in ("ms", "observe_ms"):
        spent = [t[key] for t in told if t[key]["n"]]
        known = {name: [s[name] for s in spent if s[name] is not None] for name in _SPANS}
        merged[key] = {
            "n": sum(s["n"] for s in spent),
            **{name: _SPANS[name](values) if values else None for name, values in known.items()},
        }
    return merged


def _total(counts: Sequence[int | None]) -> int | None:
    """Sum, or None if any is missing."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def histogram(samples_ns: Iterable[int], bins: int = 48) -> dict[str, Any] | None:
    """Counts in ``bins`` bins of equal width in log time, edges in ms; None without samples."""
    logs = [math.log(max(ns, 1) / 1e6) for ns in samples_ns]
    if not logs:
        return None
    low, high = min(logs), max(logs)
    width = max(high - low, 0.05) / bins  # a constant duration still gets a histogram
    counts = [0] * bins
    for value in logs:
        counts[min(int((value - low) / width), bins - 1)] += 1
    return {"edges": [math.exp(low + width * i) for i in range(bins + 1)], "counts": counts}


class Selection:
    """Keeps the episodes a report shows: the first ones and the ones with the lowest return."""

    def __init__(self, first: int = 4, worst: int = 4) -> None:
        self._first, self._worst = first, worst
        self._kept: list[Episode] = []

    def offer(self, episode: Episode) -> None:
        """Consider one more; forgets what is no longer among the first or the worst."""
        self._kept.append(episode)
        first = sorted(self._kept, key=lambda e: e.row["seed"])[: self._first]
        rest = [e for e in self._kept if e not in first]
        self._kept = first + sorted(rest, key=lambda e: e.row["return"])[: self._worst]

    def episodes(self) -> list[Episode]:
        """By seed."""
        return sorted(self._kept, key=lambda e: e.row["seed"])


class Tally:
    """Adds up episodes as they end, in any order. ``reel`` is that of the filmed one."""

    def __init__(self) -> None:
        self.reel: Reel | None = None
        self.selection = Selection()
        self._rows: list[dict[str, Any]] = []
        self._step_ns: list[int] = []
        self._act_ns: list[int] = []

    def add(self, episode: Episode) -> None:
        self.selection.offer(episode)
        self.reel = self.reel or episode.reel
        self._rows.append(episode.row)
        self._step_ns += episode.step_ns
        self._act_ns += episode.act_ns

    def rows(self) -> list[dict[str, Any]]:
        """One per seed, by seed."""
        return sorted(self._rows, key=lambda row: int(row["seed"]))

    def summary(self, **options: Any) -> dict[str, Any]:
        """`summarise` of everything added."""
        return summarise(self.rows(), self._step_ns, self._act_ns, **options)

    def histogram(self) -> dict[str, Any] | None:
        """Of the policy's own steps."""
        return histogram(self._step_ns)
