"""Puts together who is asked in a step, and on which thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wmrt.control import settings
from wmrt.control.channels import Channels
from wmrt.control.consult import Consultant, Panel
from wmrt.control.monitor import Foresight
from wmrt.control.plan import Plan
from wmrt.control.protocol import Policy
from wmrt.control.rate import Resampler, steps_per_question
from wmrt.safety import Breakers


def assemble(
    model: Policy,
    channels: Channels,
    breakers: Breakers,
    deadline_ns: float,
    timer: Callable[[], int],
    *,
    kind: type[Consultant],
    resample: Any,
    max_chunk_age: int,
    foresight: Foresight | None,
) -> tuple[Consultant, Plan]:
    """The consultant of a controller, and the plan that it falls back on.

    Raises:
        SafetyError: an age that is no whole number; see also `steps_per_question`.
    """
    limits = breakers.limits
    every = steps_per_question(model, limits.period, resample, len(channels))
    plan = Plan(settings.count("max_chunk_age", max_chunk_age, 0), limits.period_ns, every)
    predicted = tuple(bound.name for bound in limits.state)
    panel = Panel(model, channels, predicted, plan.rows, timer, foresight)
    consultant = kind(panel, breakers, plan, deadline_ns, timer)
    return (Resampler(consultant, breakers, every) if every > 1 else consultant), plan
