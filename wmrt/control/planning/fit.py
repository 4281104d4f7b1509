"""Whether planning fits the deadline on this machine: measured, not assumed."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from wmrt.core.errors import UnsupportedError

if TYPE_CHECKING:
    from wmrt.control.planning.mppi import MPPI
    from wmrt.control.planning.planner import Planner

#: Timed runs. The first one, which builds what later ones reuse, is not among them.
RUNS = 9


class Timing(NamedTuple):
    """What was measured, in milliseconds.

    Attributes:
        step_ms, slowest_ms: median and slowest control step with planning.
        own_ms: median of the policy's own step, which is part of it.
        allowed_ms: what a control step may take.
    """

    step_ms: float
    slowest_ms: float
    own_ms: float
    allowed_ms: float


def require_fit(planner: Planner, deadline: float, timer: Callable[[], int]) -> Timing:
    """What a control step takes; on a planner of which nothing else is asked.

    Args:
        deadline: seconds.

    Raises:
        UnsupportedError: the median is more than the planner's share of that; or the model
            imagines nothing finite, so that there is nothing to measure.
    """
    rest = planner.schema.neutral
    own = _milliseconds(lambda: planner.model.step({}, rest), timer)
    taken = _milliseconds(lambda: planner.step({}, rest), timer)
    if planner.stats()["imagined_steps"] != (RUNS + 1) * planner.settings.steps:
        raise UnsupportedError(
            "planning needs a model whose imagination is finite; from a state of which nothing is "
            f"known it was not: {planner.last}"
        )
    allowed = deadline * planner.settings.share * 1e3
    timing = Timing(median(taken), max(taken), median(own), allowed)
    if timing.step_ms > allowed:
        raise UnsupportedError(_too_slow(planner.settings, timing, deadline))
    return timing


def _too_slow(settings: MPPI, timing: Timing, deadline: float) -> str:
    horizon = settings.horizon
    per_step = max(timing.step_ms - timing.own_ms, 1e-9) / settings.steps
    fits = int((timing.allowed_ms - timing.own_ms) / per_step) // horizon * horizon
    advice = f"about {fits} would fit" if fits >= 3 * horizon else "no budget would fit"
    return (
        f"planning with a budget of {settings.budget} imagined steps takes {timing.step_ms:.1f} ms "
        f"a control step here (median of {RUNS}, slowest {timing.slowest_ms:.1f}; the policy alone "
        f"{timing.own_ms:.1f}); a deadline of {deadline * 1e3:g} ms allows {timing.allowed_ms:.1f} "
        f"({settings.share:.0%} of it); {advice} at horizon {horizon}. Give a smaller budget, a "
        "shorter horizon or a later deadline"
    )


def _milliseconds(call: Callable[[], Any], timer: Callable[[], int]) -> list[float]:
    call()
    found = []
    for _ in range(RUNS):
        begin = timer()
        call()
        found.append((timer() - begin) / 1e6)
    return found
