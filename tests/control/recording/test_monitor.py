"""The prediction monitor in a replay: computed again, from what was observed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.control.recording.drives import plain_drive
from tests.control.support import STATE
from tests.control.test_monitor import Seer, watched
from wmrt.control import Monitor
from wmrt.control.recording import FileRecorder
from wmrt.control.recording.reader import Recording
from wmrt.control.recording.replay import replay


def recorded(path: Path, **options: Any) -> list[str]:
    """A drive whose sensor freezes for a while; its causes."""
    with FileRecorder(path) as recorder:
        world = watched(recorder=recorder, **options)
        world.steps(3)
        world.steps(6, gap=world.state["gap"])
        world.steps(20)
    return world.bench.causes()


def test_it_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "drive.mcap"
    assert "surprise" in recorded(path)
    report = replay(Recording(path), Seer())
    assert report.identical and report.steps == 29, report.said()
    monkeypatch.setattr(Monitor, "see", lambda self, state, expected: None)
    report = replay(Recording(path), Seer())
    assert report.difference is not None and report.difference.step == 6


def test_another_expectation_is_found(tmp_path: Path) -> None:
    path = tmp_path / "drive.mcap"
    recorded(path)
    other = Seer()
    plain = other._after
    other._after = lambda action: plain(action) | {"gap": None}  # type: ignore[method-assign]
    report = replay(Recording(path), other)
    assert report.difference is not None


def test_the_calibration_is_in_the_head_and_none_without_a_monitor(tmp_path: Path) -> None:
    path, plain = tmp_path / "drive.mcap", tmp_path / "plain.mcap"
    recorded(path)
    assert Recording(path).data("monitor")["recipes"].keys() == {"toy"}
    plain_drive(plain, [STATE] * 3)
    assert Recording(plain).data("monitor") is None
