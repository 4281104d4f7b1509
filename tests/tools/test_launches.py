"""The arithmetic of launches, and what the tables hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tools import launches
from tools.launches import Cost, Device, Variant, budget, even_launch_us, floor_ms, lost_ms

COST = Cost(launch=2.0, barrier=0.5, fill=0.25)
DEVICE = Device("H200", 4000.0, COST, Cost(1.0, 0.25, 0.0), Cost(4.0, 1.0, 0.5))


def test_time_is_reading_and_what_borders_cost() -> None:
    assert floor_ms(4_000_000, 4000.0) == 0.001
    assert lost_ms(Variant("", 10, 4, 8), COST) == pytest.approx((20 + 2 + 2) / 1000)
    row = launches.predict(800_000_000, DEVICE, Variant("x", 10, 4, 8))
    assert row["floor_ms"] == pytest.approx(0.2) and row["how"] == "estimated"
    assert row["estimated_ms"] == pytest.approx(0.224)
    assert row["estimated_low_ms"] == pytest.approx(0.2 + 0.011)
    assert row["estimated_high_ms"] == pytest.approx(0.2 + 0.048)
    assert row["ratio_to_floor"] == pytest.approx(1.12)


def test_at_the_even_cost_both_take_the_same_time() -> None:
    many, one = Variant("many", 130, 0, 90), Variant("one", 4, 125, 1)
    even = even_launch_us(many, one, COST)
    assert even is not None
    at = Cost(even, COST.barrier, COST.fill)
    assert lost_ms(many, at) == pytest.approx(lost_ms(one, at))
    dearer = Cost(even + 0.1, COST.barrier, COST.fill)
    assert lost_ms(many, dearer) > lost_ms(one, dearer)
    assert even_launch_us(many, Variant("", 130, 5, 0), COST) is None


def test_the_fused_step_is_counted_from_its_operators() -> None:
    # By hand: 5 a layer, and before and behind them 2 + 5 + 4.
    kernels, weights = launches.fused_launches(24, {})
    assert kernels == 24 * 5 + 2 + 5 + 4 and weights == 24 * 4 + 2 + 5
    assert launches.fused_launches(24, {"state_fusion": 2, "gemv_residual": 3})[0] == kernels + 97
    eager, fused, layer, step = launches.variants(24, 1400, {})
    assert (eager.launches, fused.launches) == (1402, 133)
    assert (layer.launches, layer.barriers) == (133 - 24 * 4, 24 * 4)
    assert (step.launches, step.barriers, step.fills) == (3, 130, 1)
    assert fused.launches + fused.barriers == layer.launches + layer.barriers


def test_what_a_phase_may_cost_for_the_target() -> None:
    found = budget(800_000_000, DEVICE, 100)
    assert found is not None and found["per_phase_us"] == pytest.approx(2.0)
    card = Device("RTX 4090", 1000.0, COST, COST, COST)
    found = budget(800_000_000, card, 100)
    assert found is not None and found["target_ms"] == pytest.approx(1.0)
    assert found["per_phase_us"] == pytest.approx(2.0)
    assert budget(1, Device("other", 1.0, COST, COST, COST), 1) is None


def test_every_cost_has_its_range_and_a_source() -> None:
    table = json.loads(launches.COSTS.read_text("utf-8"))
    names = [device.name for device in launches.devices()]
    assert names == ["RTX 4090", "RTX 5090", "H200", "Jetson AGX Orin", "Jetson AGX Thor"]
    for costs in table["devices"].values():
        for figure in costs.values():
            assert 0 < figure["low"] <= figure["value"] <= figure["high"]
            assert figure["sources"] and set(figure["sources"]) <= set(table["sources"])


def test_operators_tell_their_kernels() -> None:
    known = launches.known_launches()
    assert known["state_fusion"] >= 1 and all(count >= 1 for count in known.values())


def run(*options: str) -> Any:
    return CliRunner().invoke(launches.main, options, env={"COLUMNS": "120"})


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "launches.json"
    done = run("--preset", "tiny", "--json", str(path))
    assert done.exit_code == 0, done.output
    assert "kernel a step" in done.output and "us a launch, taken for 1.30" in done.output
    results = json.loads(path.read_text("utf-8"))["results"]
    assert len(results["rows"]) == 5 * 4 and len(results["even"]) == 5
    assert {row["how"] for row in results["rows"]} == {"estimated"}
    done = run("--preset", "tiny", "--markdown")
    assert done.output.splitlines()[0].startswith("| device | variant | launch |")
    assert len(done.output.splitlines()) == 2 + 20


def test_kept_results_are_of_the_preset_that_targets_are_given_for() -> None:
    kept = json.loads((launches.ROOT / "benchmarks" / "launches.json").read_text("utf-8"))
    results = kept["results"]
    assert (results["preset"], results["recipe"]) == ("1.3b", "nvfp4")
    assert {row["device"] for row in results["rows"]} == {d.name for d in launches.devices()}
