"""The tool that measures what a controller costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools import overhead


def test_every_arm_is_measured_and_drives(tmp_path: Path) -> None:
    pytest.importorskip("mcap", reason="the package mcap is not installed: make setup")
    file = tmp_path / "overhead.json"
    ran = CliRunner().invoke(overhead.main, ["--rounds", "2", "--steps", "20", "--json", str(file)])
    assert ran.exit_code == 0, ran.output
    results = json.loads(file.read_text("utf-8"))["results"]
    assert [arm["name"] for arm in results["arms"]] == list(overhead.ARMS)
    for arm in results["arms"]:
        assert arm["overhead_us"]["n"] == 40 and arm["deadline_misses"] == 0
        assert 1 < arm["overhead_us"]["p50"] <= arm["overhead_us"]["p99"]
    assert results["fields"] == 20 and 0 < results["policy_us"] < 1000


def test_the_policys_own_time_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = iter([9.0, 30.0, 40.0, 50.0, 60.0] * 2)

    def timed(call: object, count: int) -> list[int]:
        return [round(next(lengths) * 1000)] * count

    monkeypatch.setattr(overhead, "timed", timed)
    results = overhead.compare(1, 3)
    assert results["policy_us"] == 9.0
    assert [arm["overhead_us"]["p50"] for arm in results["arms"]] == [21.0, 31.0, 41.0, 51.0]
