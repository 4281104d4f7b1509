"""The arithmetic of launches, and what the tables hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tools import launch_costs, launches
from tools.launch_costs import Cost, Device, Variant, budget, even_launch_us, floor_ms, lost_ms
from wmrt.kernels.triton import aot_cases

COST = Cost(launch=2.0, barrier=0.5, fill=0.25)
FULL = Cost(2.0, 0.5, 0.25, dependent=0.75, alone=3.0, tail=0.125, queue=40.0, lost=0.25)
DEVICE = Device("H200", 4000.0, COST, Cost(1.0, 0.25, 0.0), Cost(4.0, 1.0, 0.5))


def test_time_is_reading_and_what_borders_cost() -> None:
    assert floor_ms(4_000_000, 4000.0) == 0.001
    assert lost_ms(Variant("", 10, 4, 8), COST) == pytest.approx((20 + 2 + 2) / 1000)
    row = launch_costs.predict(800_000_000, DEVICE, Variant("x", 10, 4, 8))
    assert row["floor_ms"] == pytest.approx(0.2) and row["how"] == "estimated"
    assert row["estimated_ms"] == pytest.approx(0.224)
    assert row["estimated_low_ms"] == pytest.approx(0.2 + 0.011)
    assert row["estimated_high_ms"] == pytest.approx(0.2 + 0.048)
    assert row["ratio_to_floor"] == pytest.approx(1.12)


def test_what_borders_cost_that_are_made_cheaper() -> None:
    work = {"alone": 2, "tails": 8}
    plain = Variant("", 11, 0, 8, **work)
    assert lost_ms(plain, FULL) == pytest.approx((22 + 2 + 6 + 1) / 1000)
    chained = Variant("", 11, 0, 1, dependents=9, **work)
    assert lost_ms(chained, FULL) == pytest.approx((4 + 9 * 0.75 + 0.25 + 6 + 1) / 1000)
    # Three quarters of what can be saved: at 4 borders launch and fill, at 2 a border and a kernel.
    ahead = Variant("", 11, 0, 8, ahead=4, past_alone=2, **work)
    saved = 0.75 * (4 * 2.25 + 2 * (2 + 3))
    assert lost_ms(ahead, FULL) == pytest.approx((22 + 2 + 6 + 1 - saved) / 1000)
    both = Variant("", 11, 0, 1, dependents=9, ahead=4, past_alone=2, **work)
    saved = 0.75 * (4 * 0.75 + 2 * 3.75)  # nobody waits for weights that are on their way
    assert lost_ms(both, FULL) == pytest.approx((4 + 6.75 + 0.25 + 6 + 1 - saved) / 1000)
    assert launch_costs.queued_ms(plain, FULL) == 0
    queued = Variant("", 100, 0, 8, queued=True)
    row = launch_costs.predict(800_000_000, Device("H200", 4000.0, FULL, FULL, FULL), queued)
    assert row["estimated_ms"] == pytest.approx(4.0)  # the host's time hides the device's


def test_dependent_launches_are_where_there_are_such() -> None:
    ways = launches.variants(24, 1400, {})
    without = {way.name for way in ways if not launch_costs.there(way, DEVICE)}
    assert without == {"dependent", "dependent, ahead"}
    assert all(launch_costs.there(way, Device("", 1.0, FULL, FULL, FULL)) for way in ways)


@pytest.mark.parametrize(
    ("low", "taken", "high", "said"),
    [
        (0.0, 1.0, 2.0, ("yes", True)),
        (1.0, 2.0, 3.0, ("open", True)),
        (1.0, 3.0, 4.0, ("open", False)),
        (3.0, 4.0, 5.0, ("no", False)),
    ],
)
def test_whether_a_target_is_met(
    low: float, taken: float, high: float, said: tuple[str, bool]
) -> None:
    """The floor is 0.2 ms, 100 launches may cost 2 us each."""
    device = Device("H200", 4000.0, *(Cost(us, 0.0, 0.0) for us in (taken, low, high)))
    row = launch_costs.predict(800_000_000, device, Variant("", 100))
    assert (row["reached"], row["likely"]) == said and row["target_given"]
    other = launch_costs.predict(800_000_000, Device("x", 4000.0, COST, COST, COST), Variant("", 1))
    assert other["target_ms"] == pytest.approx(0.25) and not other["target_given"]


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
    ways = {way.name: way for way in launches.variants(24, 1400, {})}
    eager, fused = ways["torch operators"], ways["fused operators"]
    layer, step = ways["kernel a layer"], ways["kernel a step"]
    assert (eager.launches, fused.launches) == (1402, 133)
    assert (layer.launches, layer.barriers) == (133 - 24 * 4, 24 * 4)
    assert (step.launches, step.barriers, step.fills) == (3, 130, 1)
    assert fused.launches + fused.barriers == layer.launches + layer.barriers
    # Weights: 4 matrices a layer, all but the first are asked for, `out` past the attention.
    ahead, chained = ways["ahead"], ways["dependent, ahead"]
    assert (ahead.ahead, ahead.past_alone, ahead.launches) == (95, 24, 133)
    assert (chained.dependents, chained.fills) == (131 - 2, 7)
    assert all(way.alone + way.tails == kernels for way in ways.values())


def test_what_a_phase_may_cost_for_the_target() -> None:
    found = budget(800_000_000, DEVICE, 100)
    assert found is not None and found["per_phase_us"] == pytest.approx(2.0)
    card = Device("RTX 4090", 1000.0, COST, COST, COST)
    found = budget(800_000_000, card, 100)
    assert found is not None and found["target_ms"] == pytest.approx(1.0)
    assert found["per_phase_us"] == pytest.approx(2.0)
    assert budget(1, Device("other", 1.0, COST, COST, COST), 1) is None


def test_every_cost_has_its_range_and_a_source() -> None:
    table = json.loads(launch_costs.COSTS.read_text("utf-8"))
    names = [device.name for device in launch_costs.devices()]
    assert names == ["RTX 4090", "RTX 5090", "H200", "Jetson AGX Orin", "Jetson AGX Thor"]
    for costs in table["devices"].values():
        assert set(costs) | set(table["everywhere"]) == {
            f"{name}_{'share' if name == 'lost' else 'us'}" for name in vars(COST)
        }
        for name, figure in (*costs.items(), *table["everywhere"].items()):
            assert figure["sources"] and set(figure["sources"]) <= set(table["sources"])
            if figure["value"] is None:
                assert name == "dependent_us" and figure["low"] is figure["high"] is None
            else:
                assert 0 < figure["low"] <= figure["value"] <= figure["high"]
    none = [device.name for device in launch_costs.devices() if device.cost.dependent is None]
    assert none == ["RTX 4090", "Jetson AGX Orin"]  # sm_89 and sm_87


def test_operators_tell_their_kernels() -> None:
    known = launches.known_launches()
    assert known["state_fusion"] >= 1 and all(count >= 1 for count in known.values())


def test_every_kernel_of_a_step_but_the_first_has_its_case() -> None:
    """A launch that does not wait would let those behind it begin too early."""
    kernels = {case.op for case in aot_cases.cases() if case.name.endswith(".dependent")}
    operators = {name for name, *_ in launches.FUSED} - {"advance"}  # torch's, an ordinary launch
    alone = {name for name in operators if not any(k.startswith(name) for k in kernels)}
    assert not alone and "norm_rows" in kernels


def run(*options: str) -> Any:
    return CliRunner().invoke(launches.main, options, env={"COLUMNS": "120"})


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "launches.json"
    done = run("--preset", "tiny", "--json", str(path))
    assert done.exit_code == 0, done.output
    assert "kernel a step" in done.output and "us a launch, taken for 1.30" in done.output
    results = json.loads(path.read_text("utf-8"))["results"]
    assert len(results["rows"]) == 5 * 9 - 2 * 2 and len(results["even"]) == 5
    assert {row["how"] for row in results["rows"]} == {"estimated"}
    done = run("--preset", "tiny", "--markdown")
    assert done.output.splitlines()[0].startswith("| device | variant | launch |")
    assert len(done.output.splitlines()) == 2 + 41


def test_kept_results_are_of_the_preset_that_targets_are_given_for() -> None:
    kept = json.loads((launch_costs.ROOT / "benchmarks" / "launches.json").read_text("utf-8"))
    results = kept["results"]
    assert (results["preset"], results["recipe"]) == ("1.3b", "nvfp4")
    assert {row["device"] for row in results["rows"]} == {d.name for d in launch_costs.devices()}
