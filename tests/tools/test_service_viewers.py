"""Viewers and a robot's steps: that they look, and that ratios are those of blocks in one round."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools import service_viewers
from tools.service_viewers import ARMS, VIEWERS, figures


def test_ratios_are_of_blocks_in_one_round(seed: int) -> None:
    draw = random.Random(seed)
    first, again, looked = ARMS
    samples: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in ARMS}
    for _ in range(9):  # a machine whose speed changes between rounds, and within none
        speed = draw.uniform(1.0, 50.0)
        steps = [(speed * draw.uniform(1.0, 2.0), speed) for _ in range(40)]
        samples[first].append(steps)
        samples[again].append(draw.sample(steps, len(steps)))
        samples[looked].append([(2.0 * trip, 1.5 * act) for trip, act in steps])
    found = figures(samples)
    assert found["arms"][looked]["round_trip_ms"]["n"] == 360
    assert first not in found["ratios"]
    for q in ("p50", "p90", "p99"):
        for name, kind, ratio in (
            (again, "round_trip_ms", 1.0),
            (looked, "round_trip_ms", 2.0),
            (looked, "act_ms", 1.5),
        ):
            one = found["ratios"][name][kind][q]
            assert [one[key] for key in ("q1", "median", "q3")] == pytest.approx([ratio] * 3)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc: Linux only")
def test_viewers_look_while_a_robot_steps(tmp_path: Path) -> None:
    path = tmp_path / "viewers.json"
    arguments = ["--rounds", "4", "--steps", "20", "--json", str(path)]
    done = CliRunner().invoke(service_viewers.main, arguments, catch_exceptions=False)
    found = json.loads(path.read_text())["results"]
    assert found["viewers"] == VIEWERS and found["frames_per_s"]["least"] > 0.0, done.output
    assert {arm["act_ms"]["n"] for arm in found["arms"].values()} == {80}
    assert all(arm["act_ms"]["p50"] > 0.1 for arm in found["arms"].values())  # a model's step
    assert all(one["q1"] > 1.0 for one in found["processor_ms_per_s"].values())


def test_who_sees_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {name: [[(2.0, 1.0)] * 4] * 4 for name in ARMS}
    used = {name: [100.0] * 4 for name in ARMS}
    monkeypatch.setattr(service_viewers, "measured", lambda *_: (samples, used, [5.0, 0.5]))
    done = CliRunner().invoke(service_viewers.main, [])
    assert done.exit_code == 1 and "less than a frame a second" in done.output
    monkeypatch.setattr(service_viewers, "measured", lambda *_: (samples, used, [5.0, 4.5]))
    assert CliRunner().invoke(service_viewers.main, []).exit_code == 0
