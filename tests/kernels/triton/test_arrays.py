"""What pointers point to, as it is written and as a manifest has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wmrt.core.errors import UsageError
from wmrt.kernels.triton.aot_cases import AotCase, cases
from wmrt.kernels.triton.arrays import Array, arrays, not_followed
from wmrt.kernels.triton.formulas import Grid


def test_lines_and_semicolons() -> None:
    found = arrays("a input batch, 2 * K; b weights:gpu_gemv.words N\n c state 1")
    assert found == {
        "a": Array("input", ("batch", ("mul", 2, "K"))),
        "b": Array("weights", ("N",), "gpu_gemv.words"),
        "c": Array("state", (1,)),
    }
    assert found["a"].folded({"K": 4}) == {"role": "input", "shape": ["batch", 8]}
    assert found["b"].folded({})["stored"] == "gpu_gemv.words"
    assert not_followed(found, "a") == {**found, "a": Array("unused", ())}


@pytest.mark.parametrize("text", ["a", "a input", "a guess 3", "a input 3 -", "input 3"])
def test_what_is_not_understood(text: str) -> None:
    with pytest.raises(UsageError):
        arrays(text)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_every_case_tells_its_grid_and_every_pointer(case: AotCase) -> None:
    pointers = {name for name, kind in case.signature.items() if kind.startswith("*")}
    assert case.grid is not None and case.arrays.keys() == pointers
    early = {name for name in case.early if case.arrays[name].role != "weights"}
    assert not early, "a dependent launch may read nothing but weights before it waits"
    assert any(array.role in ("output", "state") for array in case.arrays.values())


def test_a_name_that_no_launch_has_is_refused() -> None:
    case = cases()[0]
    changes: list[dict[str, Any]] = [
        {"grid": Grid("robotz")},
        {"arrays": arrays("logits input robotz")},
    ]
    for wrong in changes:
        with pytest.raises(UsageError, match="robotz"):
            replace(case, **wrong)
    with pytest.raises(UsageError, match="no arguments"):
        replace(case, scalars={"robotz": 1})
