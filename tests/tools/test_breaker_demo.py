"""Pendulum and HalfCheetah with and without breakers, as `tools/breaker_demo.py` shows them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("mujoco", reason="pip install 'wmrt[mujoco]'")

from tools.breaker_demo import CASES, CHEETAH, PENDULUM, STEPS, extremes, main, run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.env} {case.fault}")
def test_one_bad_answer_with_and_without_breakers(case: Any, seed: int) -> None:
    bare, safe = (run(case, breakers, seed % 2**31) for breakers in (False, True))
    assert bare.steps == safe.steps == STEPS
    assert safe.bad_observations == 0 and safe.episode_return is not None
    assert safe.largest is not None and safe.largest <= 1.0
    assert safe.fastest is not None and safe.fastest <= 1.0 + 1e-6
    assert safe.trips is not None and safe.trips["range"] == case.length
    assert bare.trips is None and bare.state is None
    if math.isnan(case.value):
        assert bare.episode_return is None and bare.largest is None
        poisoned = case.env == "Pendulum-v1"  # from the fault to the end; MuJoCo starts anew
        assert bare.bad_observations == (STEPS - 50 if poisoned else 0)
    else:
        assert bare.largest == 100.0 and bare.fastest > 50  # type: ignore[operator]
        assert bare.episode_return < safe.episode_return - 900 * case.length  # type: ignore[operator]


def test_extremes_are_shares_of_the_limits() -> None:
    assert extremes([np.array([0.5]), np.array([-0.5])], PENDULUM) == pytest.approx((0.5, 1.0))
    assert extremes([np.array([math.nan]), np.array([0.1])], PENDULUM) == (None, None)
    largest, fastest = extremes([np.array([0.0, 0.0, 0.0, -2.0, 0.0, 0.0])], CHEETAH)
    assert (largest, fastest) == pytest.approx((2.0, 4.0))


def test_table_and_result_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--json", "demo.json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "Pendulum-v1" in done.output and "150 of 200" in done.output
    rows = json.loads((tmp_path / "demo.json").read_text())["results"]["rows"]
    assert len(rows) == 2 * len(CASES)
    assert [p.name for p in tmp_path.iterdir()] == ["demo.json"]
