"""A recorded drive with a planner is replayed with it, and not mistaken for one without."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.control.support import simulated
from tests.runtime.models import model_of, states
from wmrt.control import default_limits
from wmrt.control.planning import MPPI, Planner
from wmrt.control.recording import FileRecorder
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.replay import replay, require_same
from wmrt.core.errors import RecordingError

SETTINGS: dict[str, Any] = {"budget": 60, "horizon": 4, "temperature": 0.01, "margin": 0.0}


def planner_of(weights: int, /, **options: Any) -> Planner:
    model = model_of(weights)
    limits = default_limits(model.schema, model.actions, 0.1)
    return MPPI(**{**SETTINGS, **options}).around(model, limits, math.inf)


def test_a_planned_drive_is_replayed_bit_for_bit(seed: int, tmp_path: Path) -> None:
    model = model_of(seed)
    with FileRecorder(tmp_path / "a.mcap") as recorder:
        controller = simulated(model, planner=MPPI(**SETTINGS), recorder=recorder)
        for episode in range(2):
            controller.reset()
            for state in states(model.schema, 20, seed + episode):
                controller.act(state)
    assert controller.model.stats()["taken"]["plan"] > 5  # type: ignore[attr-defined]
    recording = Recording(tmp_path / "a.mcap")
    again = planner_of(seed)
    require_same(recording, again)
    report = replay(recording, again)
    assert report.identical and report.steps == 40, report.said()
    assert recording.data("ran")["executor"] == model.report().resolved["executor"]
    for other in (model_of(seed), planner_of(seed, seed=1), planner_of(seed, budget=64)):
        with pytest.raises(RecordingError, match="another model: planner"):
            require_same(recording, other)
    assert replay(recording, model_of(seed)).identical  # the planner is built again
    other = replay(recording, planner_of(seed, budget=64))
    # Another action, or one that has the breakers ask a fallback of which nothing was recorded.
    told = other.gap if other.difference is None else other.difference.field
    assert not other.identical and (told == "action" or "fallback" in str(told)), other.said()


def test_planning_in_a_recording_begins_with_a_fresh_model(seed: int, tmp_path: Path) -> None:
    planner = planner_of(seed)
    planner.step(states(planner.schema, 1, seed)[0])
    with pytest.raises(Exception, match="the model remembers 1 steps"):
        with FileRecorder(tmp_path / "a.mcap") as recorder:
            simulated(planner, recorder=recorder)
