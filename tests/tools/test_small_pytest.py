"""The little of pytest that runs kernel tests on a bare machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.small_pytest import MonkeyPatch, Outcome, raises

ROOT = Path(__file__).resolve().parents[2]

SAMPLE = """
import os
from functools import wraps
import pytest

TORN = []

@pytest.fixture(autouse=True)
def always():
    TORN.append("up")
    yield
    TORN.append("down")

@pytest.fixture
def twice(seed):
    return seed * 2

@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize(("b", "c"), [(1, 2), pytest.param(3, 4, id="x")])
def test_product(a, b, c, seed, twice):
    assert twice == 2 * seed and (a, b, c) in {(1, 1, 2), (1, 3, 4), (2, 1, 2), (2, 3, 4)}

@pytest.mark.skipif(True, reason="never")
def test_skipped():
    raise AssertionError

@pytest.mark.full
def test_long():
    raise AssertionError

@pytest.mark.anything(3)
def test_fails():
    assert TORN[-1] == "up"
    raise ValueError("out of luck\\nand more")

def test_skips_itself():
    pytest.skip("not here")

def test_patches(monkeypatch, tmp_path):
    monkeypatch.setenv("WMRT_SMALL", "1")
    (tmp_path / "x").write_text("y")

def test_undone():
    assert "WMRT_SMALL" not in os.environ and TORN.count("down") == len(TORN) - TORN.count("up")

def test_unknown(no_such_fixture):
    pass
"""

RUN = """
import sys
sys.path.insert(0, {folder!r})
from tools import small_pytest
small_pytest.install()
left = iter([True] * {count} + [False] * 100)
for o in small_pytest.run_module("sample", 7, lambda: next(left)):
    print(o.test, o.result, o.reason, sep="|")
"""


def run(tmp_path: Path, count: int = 100) -> list[list[str]]:
    (tmp_path / "sample.py").write_text(SAMPLE, "utf-8")
    code = RUN.format(folder=str(tmp_path), count=count)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.split("|") for line in done.stdout.splitlines()]


def test_a_file_of_everything(tmp_path: Path) -> None:
    found = {name: (result, reason) for name, result, reason in run(tmp_path)}
    assert [found[f"sample.test_product[{i}]"][0] for i in range(4)] == ["passed"] * 4
    assert found["sample.test_skipped[0]"] == ("skipped", "never")
    assert found["sample.test_long[0]"] == ("skipped", "long")
    result, reason = found["sample.test_fails[0]"]
    assert result == "failed" and reason.startswith("ValueError at sample.py:")
    assert reason.endswith(": out of luck")
    assert found["sample.test_skips_itself[0]"] == ("skipped", "not here")
    assert found["sample.test_patches[0]"][0] == found["sample.test_undone[0]"][0] == "passed"
    assert found["sample.test_unknown[0]"][1].endswith("no fixture no_such_fixture")


def test_what_comes_after_its_time_is_cut(tmp_path: Path) -> None:
    results = [result for _, result, _ in run(tmp_path, count=2)]
    assert results[:2] == ["passed"] * 2 and set(results[2:]) == {"cut"}


def test_raises_as_the_real_one() -> None:
    with raises(ValueError, match="lu.k") as caught:
        raise ValueError("out of luck")
    assert str(caught.value) == "out of luck"
    for body in (None, ValueError("bad")):
        with pytest.raises(AssertionError), raises(ValueError, match="luck"):
            if body is not None:
                raise body
    with pytest.raises(KeyError), raises(ValueError):
        raise KeyError


def test_patches_are_put_back() -> None:
    patch = MonkeyPatch()
    patch.setattr("tools.small_pytest.Outcome", 3)
    patch.setattr(os, "sep", "?")
    patch.setenv("WMRT_SMALL", "1")
    patch.delenv("WMRT_SMALL")
    patch.delenv("WMRT_SMALLER", raising=False)
    patch.undo()
    from tools import small_pytest

    assert small_pytest.Outcome is Outcome and os.sep == "/" and "WMRT_SMALL" not in os.environ


def test_a_module_that_does_not_import() -> None:
    from tools.small_pytest import run_module

    (only,) = run_module("tests.no_such_module", 1, lambda: True)
    assert only.result == "failed" and only.reason.startswith("import: ModuleNotFoundError")
