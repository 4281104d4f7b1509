"""Builds again the controller that a recording is of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from wmrt.control.calibration import Calibration
from wmrt.control.consult import Panel
from wmrt.control.controller import Controller
from wmrt.control.monitor import Monitor
from wmrt.control.planning import MPPI, Planner
from wmrt.control.protocol import Policy
from wmrt.control.rate import Resampler
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.stand_ins import (
    RecordedChannels,
    RecordedClock,
    RecordedConsultant,
    RecordedFallback,
    RecordedIntake,
    Script,
)
from wmrt.control.recording.values import decode
from wmrt.safety import Breakers, Limits

P = TypeVar("P")


def with_planner(recording: Recording, model: P) -> P | Planner:
    """``model``, with the planner around it that drove, if one did. No deadline: who was late is in
    the record."""
    settings = recording.data("planner")
    if settings is None or isinstance(model, Planner):
        return model
    limits = Limits.from_json(recording.data("limits"))
    inside: Any = model
    return MPPI(**settings).around(inside, limits, math.inf)


def _monitor(recording: Recording) -> Monitor | None:
    """The prediction monitor as it was calibrated, which computes all it said anew."""
    recorded = recording.data("monitor")
    if recorded is None:
        return None
    (recipe,) = recorded["recipes"]
    return Monitor(Calibration.from_json(recorded, recipe, f"{recording.path}: monitor"))


def rebuild(
    recording: Recording, model: Policy, models: Mapping[str, Policy], script: Script
) -> tuple[Controller, RecordedConsultant]:
    """A controller as the recorded one, that takes from ``script`` what it cannot compute."""
    settings = decode(recording.data("controller"))
    limits = Limits.from_json(recording.data("limits"))
    breakers = Breakers(limits, robot=settings["robot"])
    controller = Controller(
        model,
        limits.period,
        math.inf,
        breakers,
        RecordedFallback(script) if settings["fallback"] else None,
        clock=RecordedClock(script),
        timer=lambda: 0,
        max_chunk_age=settings["max_chunk_age"],
        resample="linear" if settings["steps_per_question"] > 1 else None,
        monitor=_monitor(recording),
    )
    controller._intake = RecordedIntake(model.schema, settings["max_age_ns"], script, breakers)
    every = {channel["name"]: channel["every"] for channel in settings["channels"]}
    channels: Any = RecordedChannels(script, every, models)
    controller._channels = channels
    predicted = tuple(bound.name for bound in limits.state)
    foresight = controller._monitor.foresight
    panel = Panel(model, channels, predicted, controller._plan.rows, lambda: 0, foresight)
    deadline_ns = settings["deadline_ns"]
    consultant = RecordedConsultant(script, panel, breakers, controller._plan, deadline_ns)
    asked_every = settings["steps_per_question"]
    controller._consultant = (
        Resampler(consultant, breakers, asked_every) if asked_every > 1 else consultant
    )
    return controller, consultant
