"""Windows of time in which others knock at a service, at a decoy, or do not; and what that changes
for the service's robots.

A comparison of what was before with what came later holds all that changed meanwhile. These windows
are short and lie in an order drawn anew for each block, so that it cancels.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tools.intruders import Heard, Try
from wmrt.core import measure

#: Seconds of a window: 320 steps of 16 robots at 10 Hz, the p99 of which is the fourth longest.
WINDOW = 2.0
#: Seconds from a window's beginning to its burst.
BURST = 0.5
#: Seconds in which a step may meet a burst, and milliseconds within which a client is told.
MEETS, TOLD = 0.1, 100.0
#: IQR of quiet windows' p99, over its median, beyond which a run tells nothing: any change is
#: within it. On a quiet machine it was 0.1 to 0.2.
NOISY = 0.5
FORMS = ("even", "burst")
KINDS = ("quiet", *(f"{whom} {form}" for form in FORMS for whom in ("decoy", "true")))
#: Of bootstraps.
RESAMPLES = 10_000


def schedule(seconds: float, seed: int) -> list[str]:
    """Kinds of the windows that fit into so many seconds, at least two blocks of them."""
    rng, found = random.Random(f"windows {seed}"), list[str]()
    for _ in range(max(2, round(seconds / (WINDOW * len(KINDS))))):
        found += rng.sample(KINDS, len(KINDS))
    return found


def tries(kinds: Sequence[str], clients: int, start: float, ports: Mapping[str, int]) -> list[Try]:
    """When each of ``clients`` knocks, once in every window that is not quiet.

    Args:
        start: `time.monotonic` seconds of the first window. ports: of ``decoy`` and ``true``.
    """
    found = []
    for number, kind in enumerate(kinds):
        if kind == "quiet":
            continue
        whom, form = kind.split()
        begin = start + number * WINDOW
        for client in range(clients):
            after = BURST if form == "burst" else WINDOW * (client + 0.5) / clients
            found.append(Try(begin + after, ports[whom], number))
    return found


def change(differences: Sequence[float], seed: int) -> dict[str, float]:
    """Median of paired differences, and the middle 95% of its bootstrap."""
    rng = random.Random(f"bootstrap {seed}")
    medians = sorted(
        statistics.median(rng.choices(differences, k=len(differences))) for _ in range(RESAMPLES)
    )
    return {
        "median": statistics.median(differences),
        "low": measure.percentile(medians, 2.5),
        "high": measure.percentile(medians, 97.5),
    }


def figures(
    kinds: Sequence[str], steps: Sequence[tuple[float, float]], heard: Sequence[Heard], seed: int
) -> dict[str, Any]:
    """What the windows say.

    Args:
        steps: seconds from the first window's beginning to a step's own, and its milliseconds.
    """
    windows: list[list[float]] = [[] for _ in kinds]
    met: dict[str, list[float]] = {"decoy": [], "true": []}
    for at, ms in steps:
        number, within = divmod(at, WINDOW)
        windows[int(number)].append(ms)
        whom, _, form = kinds[int(number)].partition(" ")
        if form == "burst" and 0.0 <= within - BURST < MEETS:
            met[whom].append(ms)
    p99 = [measure.percentile(sorted(ms), 99) for ms in windows]
    of = {kind: [p for k, p in zip(kinds, p99, strict=True) if k == kind] for kind in KINDS}
    low, high = measure.quartiles(of["quiet"])
    spread = measure.spread(of["quiet"])
    pooled = {
        kind: [ms for k, own in zip(kinds, windows, strict=True) if k == kind for ms in own]
        for kind in KINDS
    }
    return {
        "window_s": WINDOW,
        "windows": list(kinds),
        "round_trip_ms": {kind: measure.summary(pooled[kind]) for kind in KINDS},
        "p99_of_windows_ms": of,
        "steps_in_a_burst_ms": {whom: measure.summary(met[whom]) for whom in met},
        "quiet_p99_iqr_ms": [low, high],
        "noisy": spread is None or spread > NOISY,
        "p99_change_ms": {form: _changes(of, form, seed) for form in FORMS},
        "p99_unchanged": {
            form: _changes(of, form, seed)["service"]["median"] <= high - low for form in FORMS
        },
        "refused": {kind: refusals(kinds, kind, heard) for kind in KINDS if kind != "quiet"},
    }


def _changes(of: Mapping[str, Sequence[float]], form: str, seed: int) -> dict[str, Any]:
    """Between windows of the same block."""
    quiet, decoy, true = of["quiet"], of[f"decoy {form}"], of[f"true {form}"]

    def between(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
        return change([y - x for x, y in zip(a, b, strict=True)], seed)

    return {
        "service": between(decoy, true),
        "harness": between(quiet, decoy),
        "both": between(quiet, true),
    }


def refusals(kinds: Sequence[str], kind: str, heard: Sequence[Heard]) -> dict[str, Any]:
    """What those were told who knocked in windows of ``kind``, and when."""
    own = [one for one in heard if kinds[one.group] == kind]
    return {
        "said": dict(Counter(one.said for one in own)),
        "ms": measure.summary([one.ms for one in own]),
        "harness_lag_ms": measure.summary([one.lag_ms for one in own]),
        "later_than_100_ms": sum(one.ms > TOLD for one in own),
    }
