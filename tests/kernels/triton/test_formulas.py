"""Formulas: what is written, what is given for it, what stays open."""

from __future__ import annotations

import json

import numpy as np
import pytest

from wmrt.core.errors import UsageError
from wmrt.kernels.triton.formulas import Grid, folded, listed, names, parsed, parsed_all


def test_a_formula_is_what_python_makes_of_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = "ceil_div((HEADS + 2 * rows) * 3, ROWS) + rows * HEADS"
    for _ in range(50):
        h, r, block = (int(n) for n in rng.integers(1, 10_000, 3))
        want = -(-(h + 2 * r) * 3 // block) + r * h
        assert folded(parsed(text), {"HEADS": h, "rows": r, "ROWS": block}) == want


def test_what_is_not_given_stays_open() -> None:
    half = folded(parsed("ceil_div(rows, ROWS) + 2 * 3"), {"ROWS": 8})
    assert half == ("add", ("ceil_div", "rows", 8), 6) and list(names(half)) == ["rows"]
    assert json.loads(json.dumps(listed(half))) == ["add", ["ceil_div", "rows", 8], 6]
    assert parsed_all("a, 2 * b") == ("a", ("mul", 2, "b"))


@pytest.mark.parametrize(
    "text", ["", "a -", "a - b", "a / b", "-1", "True", "1.5", "min(a, b)", "ceil_div(a)", "'a'"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no formula"):
        parsed(text)


def test_a_grid_is_called_with_names() -> None:
    grid = Grid("ceil_div(rows, ROWS)", "batch")
    assert grid(rows=17, ROWS=8, batch=3, more="x") == (3, 3)
    assert grid.folded({"ROWS": 8}) == [["ceil_div", "rows", 8], "batch", 1]
    assert grid.names == {"rows", "ROWS", "batch"}
    with pytest.raises(UsageError, match="needs batch, rows"):
        grid(ROWS=8)
    for wrong in (1.0, True, None, "8"):
        with pytest.raises(UsageError, match="whole numbers"):
            grid(rows=17, ROWS=8, batch=wrong)
    for axes in ((), ("1", "1", "1", "1")):
        with pytest.raises(UsageError, match="1 to 3 axes"):
            Grid(*axes)
