"""What is said of a run beside its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wmrt.control.planning import Planner

if TYPE_CHECKING:
    from wmrt.model.checkpoint import Checkpoint


def origin_note(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What every table says of weights that nobody trained, or that were grown."""
    from wmrt.model.grown import grown_note
    from wmrt.model.random_init import is_random

    if is_random(checkpoint):
        return ("random weights, for speed only: what it does means nothing",)
    note = grown_note(checkpoint.provenance)
    return () if note is None else (note,)


def planner_facts(planner: Planner) -> dict[str, Any]:
    """Settings of a planner and what was measured when it was made."""
    settings, timing = planner.settings, planner.timing
    return {
        "name": "mppi",
        **settings.to_json(),
        "samples": settings.samples,
        "steps": settings.steps,
        "timing": None if timing is None else timing._asdict(),
    }
