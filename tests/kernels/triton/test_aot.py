"""Compiling without a GPU: every kernel within its limits and no worse than kept; and each limit
shown to be one, by a kernel made to break it."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import triton
import triton.language as tl

from tests.conftest import FULL
from tools import aot_check
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton import aot, aot_cases, aot_limits
from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.aot_limits import Limits
from wmrt.kernels.triton.interpreter import repaired

CASES = aot_cases.cases()
LIMITS = Limits.read()
DOCUMENT = json.loads(aot_limits.PATH.read_text())


@triton.jit
def hoard(x: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Every value lives until their sum is known: BLOCK / 32 registers of each lane of a warp."""
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(x + at, value * tl.sum(value, 0))


@triton.jit
def read(
    w: tl.tensor, y: tl.tensor, n: tl.tensor, BLOCK: tl.constexpr, POLICY: tl.constexpr
) -> None:
    """Reads words of 8 weights, adds them up."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for i in range(n):
        total += tl.load(w + i * BLOCK + at, eviction_policy=POLICY)
    tl.store(y + at, total)


def hoarding(block: int) -> AotCase:
    return AotCase("hoard", hoard, {"x": "*fp32"}, {"BLOCK": block}, warps=1)


def reading(block: int = 512, policy: str = "evict_first", **more: Any) -> AotCase:
    constants = {"BLOCK": block, "POLICY": policy}
    signature = {"w": "*i32", "y": "*i32", "n": "i32"}
    return AotCase("read", read, signature, constants, weights_per_program=block * 8 * 64, **more)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    with aot.fresh_cache():
        yield


def violations(case: AotCase, capability: int = 87) -> list[str]:
    figures = aot.measure(aot.compile_case(case, capability))
    return LIMITS.violations(case, capability, figures)


def pairs() -> list[Any]:
    """Every case for every target; in short one of each operation, drawn anew in every run."""
    every = aot_check.assembled([(case, target) for case in CASES for target in case.targets])
    if not FULL:
        draw = random.Random(os.environ["WMRT_TEST_SEED"])
        quick = [pair for pair in every if not pair[0].slow]
        ops = sorted({case.op for case, _ in quick})
        every = [draw.choice([pair for pair in quick if pair[0].op == op]) for op in ops]
    return [pytest.param(*pair, id=f"{pair[0].name}-sm_{pair[1]}") for pair in every]


@pytest.mark.parametrize(("case", "capability"), pairs())
def test_within_limits_and_no_worse_than_kept(case: AotCase, capability: int) -> None:
    kept = aot_check.kept_rows()  # none where they are of another triton
    assert not kept or (case.name, capability) in kept, "run: python tools/aot_check.py --keep"
    (row,) = aot_check.check([(case, capability)], LIMITS, kept)
    assert row["violations"] == [] and row["regressions"] == []


def test_the_kept_results_are_of_the_cases_there_are() -> None:
    kept = aot_check.kept_rows()
    there = {(case.name, target) for case in CASES for target in case.targets}
    assert not kept or set(kept) == there, "run: python tools/aot_check.py --keep"


def test_every_limit_is_met_by_what_is_kept() -> None:
    named = {case.name: case for case in CASES}
    for (name, capability), figures in aot_check.kept_rows().items():
        assert LIMITS.violations(named[name], capability, figures) == [], (name, capability)


def test_no_exception_is_left_over() -> None:
    assert LIMITS.unused(CASES) == []


def test_a_spill_is_red() -> None:
    assert violations(hoarding(2048)) == []
    found = violations(hoarding(8192))
    assert [text.split()[0] for text in found] == ["registers", "stack_bytes", "local_accesses"]


@pytest.mark.parametrize("capability", aot_cases.TARGETS if FULL else (87, 120))
def test_a_loop_over_weights_is_measured(capability: int) -> None:
    case = reading()
    figures = aot.measure(aot.compile_case(case, capability))
    assert figures["looped"] and figures["weight_load_bits"] == 128
    # 512 words in 4 warps: one load of 16 bytes a lane, unrolled by the compiler.
    assert figures["weights_loaded"] % (512 * 8) == 0
    assert 0 < figures["instructions_per_weight"] < 1
    assert LIMITS.violations(case, capability, figures) == []


def test_narrow_loads_are_red() -> None:
    (found,) = violations(reading(block=128))
    assert found.startswith("weight_load_bits 32, at least 128: ")


def test_weights_that_are_not_marked_are_red() -> None:
    (found,) = violations(reading(policy=""))
    assert found == "no load of weights found: load them with eviction_policy='evict_first'"


def test_a_missing_instruction_is_red() -> None:
    (found,) = violations(reading(instructions=("LDG", "IDP.4A")))
    assert found.startswith("no IDP.4A among its instructions")


def test_weights_that_do_not_add_up_are_red() -> None:
    case, figures = reading(), {"weights_loaded": 8, "looped": False}
    assert "loads 8 weights of" in aot_limits._weights(case, figures)[0]
    figures = {"weights_loaded": 2 * case.weights_per_program, "looped": True}
    assert "one pass of the loop loads" in aot_limits._weights(case, figures)[0]


@pytest.mark.parametrize(
    ("capability", "budget"), [(87, 5.8), (89, 23), (90, 4.4), (110, 8.3), (120, 16)]
)
def test_budgets_are_those_of_the_tightest_device(capability: int, budget: float) -> None:
    """NVFP4's 4.5 bits a weight; Orin Nano rather than Orin."""
    assert LIMITS.budget(capability, 4) == pytest.approx(0.7 * budget, rel=0.04)
    assert LIMITS.budget(capability, 8) == pytest.approx(LIMITS.budget(capability, 4) * 8.5 / 4.5)


def test_a_device_that_is_not_in_the_table() -> None:
    with pytest.raises(UsageError, match=r"capability 80 in .*\[87, 89, 90, 110, 120\]"):
        LIMITS.budget(80, 4)


def test_an_exception_counts_for_its_cases_and_capabilities() -> None:
    document = copy.deepcopy(DOCUMENT)
    rule = {"cases": "re*", "metric": "registers", "at_most": 200, "reason": "it has to"}
    document["exceptions"] = [{**rule, "capabilities": [90]}]
    limits = Limits(document)
    assert limits.of(reading(), 90)["registers"] == ("at_most", 200.0, "it has to")
    assert limits.of(reading(), 87)["registers"][1] == 128
    assert limits.of(hoarding(64), 90)["registers"][1] == 128
    assert limits.unused([hoarding(64)]) == ["re*"] and limits.unused([reading()]) == []


def test_an_exception_may_be_for_some_releases_of_triton() -> None:
    document = copy.deepcopy(DOCUMENT)
    rule = {"cases": "re*", "metric": "barriers", "at_most": 9, "reason": "it has to"}
    document["exceptions"] = [{**rule, "triton": ["3.6", "3.9"]}]
    bounds = {
        release: Limits(document, release).of(reading(), 90)["barriers"][1]
        for release in ("3.6", "3.7", "3.9")
    }
    assert bounds == {"3.6": 9, "3.7": 4, "3.9": 9}
    assert Limits(document, "3.6").unused([hoarding(64)]) == ["re*"]
    assert Limits(document, "3.7").unused([hoarding(64)]) == []  # not a rule of this release
    installed = ".".join(triton.__version__.split(".")[:2])
    assert Limits(document).triton == installed == LIMITS.triton
    document["exceptions"] = [{**rule, "triton": ["3.5"]}]
    with pytest.raises(UsageError, match=r"triton 3\.5, there are 3\.6, 3\.7, 3\.8, 3\.9"):
        Limits(document, "3.7")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"cases": "*", "metric": "registers", "at_most": 9}, "give at_most or at_least, and a"),
        ({"cases": "*", "metric": "registers", "reason": "so"}, "give at_most or at_least"),
        ({"cases": "*", "metric": "speed", "at_most": 9, "reason": "so"}, "limits are registers"),
    ],
)
def test_limits_have_reasons(rule: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Limits({**DOCUMENT, "exceptions": [rule]})


def test_worse_than_before_is_a_regression() -> None:
    kept = {"instructions_per_weight": 2.0, "registers": 64, "instructions": 100}
    assert aot_limits.regressions(kept, kept) == []
    better = {"instructions_per_weight": 1.9, "registers": 60, "instructions": 105}
    assert aot_limits.regressions(better, kept) == []
    worse = {"instructions_per_weight": 2.1, "registers": 65, "instructions": 106}
    assert aot_limits.regressions(worse, kept) == [
        "instructions_per_weight 2.1, was 2",
        "registers 65, was 64",
        "instructions 106, was 100",
    ]
    nothing = {**kept, "instructions_per_weight": None}
    assert aot_limits.regressions(nothing, kept) == aot_limits.regressions(kept, nothing) == []


def test_what_does_not_compile_is_told() -> None:
    with pytest.raises(UnsupportedError, match="read does not compile for sm_87: "):
        aot.compile_case(replace(reading(), signature={"w": "fp32", "y": "*i32", "n": "i32"}), 87)


def test_a_case_fits_its_kernel() -> None:
    with pytest.raises(UsageError, match=r"hoard: signature and constants give \['x'\]"):
        AotCase("hoard", hoard, {"x": "*fp32"})
    with pytest.raises(UsageError, match=r"\['y'\] are no arguments"):
        AotCase("hoard", hoard, {"x": "*fp32"}, {"BLOCK": 32}, aligned=("y",))


def test_names_of_cases_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [case.name for case in CASES] == sorted({case.name for case in CASES})
    monkeypatch.setattr(aot_cases, "MODULES", ("norm", "norm"))
    with pytest.raises(UsageError, match="is there twice"):
        aot_cases.cases()


def test_compiling_after_interpreting() -> None:
    """Interpreting leaves nothing behind that a compilation would find."""
    import torch

    x = torch.ones(64)
    with repaired():
        hoard[(1,)](x, BLOCK=64)
    assert x.tolist() == [64.0] * 64
    assert violations(hoarding(64)) == []
