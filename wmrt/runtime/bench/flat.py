"""Whether memory stays where it is while a model steps, and whether that would have been seen."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from wmrt.core import measure

READINGS = 40
#: Of the last half, whose growths say how sure its slope is.
PARTS = 10
#: Bytes per 1 000 steps below which memory is flat, and bytes a step of the leak that is planted.
LIMIT, LEAK = 1024, 100


def flatness(
    step: Callable[[], object], read: Callable[[], int | None], steps: int
) -> dict[str, Any]:
    """Step, read memory now and then, and fit a line to the last half; then the same again with a
    planted leak, which has to be caught: a growth that fits into memory which the process has, but
    does not use, is seen by nobody.

    Args:
        step: one step. read: resident bytes, None where the system does not tell.
        steps: of each of the two parts.

    Keys: ``verdict`` (flat, growing, not proven: the planted leak was missed, missing: nothing was
    read), ``bytes_per_1000_steps``, ``planted_bytes_per_1000_steps``, ``limit``, ``steps``.

    Garbage is not collected meanwhile, as in a control loop: what only a collection would free
    counts as growth.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    kept: list[bytes] = []

    def leaking() -> None:
        step()
        kept.append(_leak(len(kept)))

    try:
        own = _slope(step, read, steps)
        planted = _slope(leaking, read, steps)
    finally:
        if enabled:
            gc.enable()
    return {
        "verdict": verdict(own, planted),
        "bytes_per_1000_steps": own,
        "planted_bytes_per_1000_steps": planted,
        "limit": LIMIT,
        "steps": steps,
    }


def _leak(count: int) -> bytes:
    """A new object of `LEAK` bytes, its header included, that no other has the contents of."""
    empty = b"".__sizeof__()
    return count.to_bytes(LEAK - empty, "little")


def _slope(step: Callable[[], object], read: Callable[[], int | None], steps: int) -> float | None:
    """Bytes per 1 000 steps over the last half of the readings; None if one is missing."""
    every = max(steps // READINGS, 1)
    at: list[int] = []
    seen: list[int] = []
    for count in range(1, steps + 1):
        step()
        if count % every == 0:
            now = read()
            if now is None:
                return None
            at.append(count)
            seen.append(now)
    return growth(at, seen)


def growth(at: Sequence[int], seen: Sequence[int]) -> float:
    """Bytes per 1 000 steps over the last half of readings ``seen`` after ``at`` steps."""
    half = len(at) // 2
    return 1000 * measure.slope(at[half:], seen[half:])


def uncertainty(at: Sequence[int], seen: Sequence[int]) -> float:
    """Half the width of the 95% interval of `growth`, bytes per 1 000 steps, by how differently
    memory grew in `PARTS` parts of the last half: it grows in stairs, so the distances of single
    readings from a line say nothing. ValueError for fewer readings than that takes."""
    half = len(at) // 2
    ends = [half + round(part * (len(at) - 1 - half) / PARTS) for part in range(PARTS + 1)]
    if len(set(ends)) <= PARTS:
        raise ValueError(f"{len(at)} readings; {PARTS} parts of their half take {2 * PARTS + 1}")
    grown = [1000 * (seen[b] - seen[a]) / (at[b] - at[a]) for a, b in pairwise(ends)]
    width = measure.mean_ci95(grown)[1]
    assert width is not None  # of several
    return width


def scatter(at: Sequence[int], seen: Sequence[int]) -> float:
    """As `uncertainty`, of readings that scatter about a line: by how far the means of `PARTS`
    parts of the last half are from theirs."""
    half = len(at) // 2
    ends = [half + round(part * (len(at) - half) / PARTS) for part in range(PARTS + 1)]
    if len(set(ends)) <= PARTS:
        raise ValueError(f"{len(at)} readings; {PARTS} parts of their half take {2 * PARTS}")
    x = [fmean(at[a:b]) for a, b in pairwise(ends)]
    y = [fmean(seen[a:b]) for a, b in pairwise(ends)]
    return 1000 * measure.slope_ci95(x, y)


def verdict(
    own: float | None, planted: float | None, own_ci: float = 0.0, planted_ci: float = 0.0
) -> str:
    """What growths without and with the planted leak say, see `flatness`; with half the widths of
    their intervals, ``not proven`` as well where the limit lies within."""
    if own is None or planted is None:
        return "missing"
    if own - own_ci >= LIMIT:
        return "growing"
    return "flat" if own + own_ci < LIMIT <= planted - planted_ci else "not proven"
