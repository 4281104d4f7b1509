"""Verdicts of the four gates: what each is drawn from, and what it says where nothing can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wmrt.quant import get_recipe
from wmrt.quant.ledger import MISSING, Entry, Figure, Ledger
from wmrt.train.evaluate import Horizon
from wmrt.train.gates import capacity, execution, paired, quality, speed, speed_verdict
from wmrt.train.quality import ActionError, OpenLoop

NVFP4 = "linear_nvfp4_a8.reference"
BF16 = "linear_bf16.reference"


def ran() -> dict[str, Any]:
    """A probe that found everything as it should be."""
    call = {
        "calls": 2,
        "deviation": 0.0,
        "input": "float32",
        "weight": "uint8",
        "output": "float32",
    }
    return {
        "report": {
            "layers": {"a": NVFP4, "head": BF16},
            "kernels": {NVFP4: 1, BF16: 1},
            "resolved": {"layout": "canonical"},
            "model_bytes": 10,
        },
        "resident": {"steps": 100},
        "calls": {"a": {**call, "kernels": [NVFP4]}, "head": {**call, "kernels": [BF16]}},
        "float_copies": [],
    }


PLAN = {"a": get_recipe("nvfp4"), "head": get_recipe("bf16")}
WHY = {"head": "every recipe does"}


def test_execution_passes_and_lists_what_ran() -> None:
    gate = execution(ran(), PLAN, WHY)
    assert gate.verdict == "pass" and NVFP4 in gate.reason
    rows = gate.evidence["linears"]
    assert [row["excluded"] for row in rows] == [None, "every recipe does"]
    assert rows[0]["kernel"] == NVFP4 and rows[0]["weights"] == "nvfp4"
    assert gate.to_json()["evidence"]["reason"] == gate.reason


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda p: p["report"]["layers"].update(a=BF16), "a runs linear_bf16.reference, asked for"),
        (lambda p: p["report"]["layers"].update(a="linear_unheard_of"), "linear_unheard_of"),
        (lambda p: p["calls"]["a"].update(kernels=[BF16]), "a ran linear_bf16.reference"),
        (lambda p: p["calls"]["a"].update(calls=0), "a was never called"),
        (lambda p: p["calls"].pop("a"), "a was never called"),
        (lambda p: p["calls"]["a"].update(deviation=0.01), "a deviates from the reference"),
        (lambda p: p["calls"]["a"].update(deviation=float("nan")), "deviates"),
        (lambda p: p["float_copies"].append({"shape": [2, 2]}), "1 float copies"),
    ],
)
def test_execution_fails_on_anything_else(spoil: Any, text: str) -> None:
    probe = ran()
    spoil(probe)
    gate = execution(probe, PLAN, WHY)
    assert gate.verdict == "fail" and text in gate.reason and gate.evidence["faults"]


def opened(model: float = 0.2) -> OpenLoop:
    def horizon(error: float) -> Horizon:
        return Horizon(1, error, 0.5, 0.0, 0.1, 10)

    action = ActionError(0.01, 0.1, 0.01, 0.05)
    return OpenLoop(10, (), None, action, (horizon(0.2),), (horizon(model),))


def returns(low: float | None, high: float | None) -> dict[str, Any]:
    return {"relative": 0.0, "low": low, "high": high, "seeds": 30}


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.05, 0.02, "pass"),
        (-0.051, 0.02, "missing"),
        (-0.2, -0.051, "fail"),
        (-0.2, -0.05, "missing"),
        (None, None, "missing"),
    ],
)
def test_quality_is_judged_by_the_interval(
    low: float | None, high: float | None, verdict: str
) -> None:
    gate = quality(opened(), returns(low, high))
    assert gate.verdict == verdict
    assert (verdict == "missing") == ("episodes" in gate.reason)


def test_quality_needs_both_parts_and_a_prediction() -> None:
    assert quality(opened(0.6), returns(0.0, 0.1)).verdict == "fail"
    no_simulator = {"missing": "highway_env is not installed; run: pip install 'wmrt[drive]'"}
    gate = quality(opened(), no_simulator)
    assert gate.verdict == "missing" and "pip install" in gate.reason
    assert gate.evidence["open_loop"]["windows"] == 10
    assert quality("no drives", returns(0.0, 0.1)).verdict == "missing"


def test_paired_returns() -> None:
    found = paired([2.0, 2.0, 2.0], [2.0, 2.0, 2.0])
    assert (found["relative"], found["low"], found["high"]) == (0.0, 0.0, 0.0)
    assert found["packed_mean"] == found["bf16_mean"] == 2.0 and found["seeds"] == 3


def ledger() -> Ledger:
    nothing = Figure(0, "estimated")
    kept = Entry("w", "nvfp4", Figure(900, "estimated"), Figure(90, "estimated"), nothing, nothing)
    return Ledger(
        (kept,),
        ring=Figure(5, "estimated"),
        workspace=Figure(5, "measured"),
        overhead=Figure(10, "estimated"),
        ring_read=Figure(1, "estimated"),
    )


@pytest.mark.parametrize(
    ("file", "resident", "verdict"),
    [
        (1000, 1100, "pass"),
        (1000, 1101, "fail"),
        (1010, 1000, "pass"),
        (1011, 1000, "fail"),
        (989, 1000, "fail"),
        (1000, None, "missing"),
    ],
)
def test_capacity_has_two_bounds(file: int, resident: int | None, verdict: str) -> None:
    figure = MISSING if resident is None else Figure(resident, "measured")
    assert capacity(ledger(), file, figure).verdict == verdict


def test_capacity_without_a_workspace_is_missing() -> None:
    gate = capacity(replace(ledger(), workspace=MISSING), 1000, Figure(1000, "measured"))
    assert gate.verdict == "missing" and gate.evidence["resident_ratio"] is None


def test_speed_of_reference_kernels_is_missing_and_never_a_figure() -> None:
    gate = speed({NVFP4: 8, BF16: 2})
    assert gate is not None and gate.verdict == "missing" and not gate.evidence
    assert "only reference kernels" in gate.reason


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(1.1, 2.0, "pass"), (0.5, 0.9, "fail"), (0.9, 1.2, "missing")]
)
def test_speed_is_judged_by_the_spread(low: float, high: float, verdict: str) -> None:
    timing = {"ratio_p5": low, "ratio_p50": (low + high) / 2, "ratio_p95": high}
    assert speed_verdict(timing).verdict == verdict
