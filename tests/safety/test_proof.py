"""Whether these tests are enough: every line and branch is reached, every change is noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "wmrt/safety"
TESTS = "tests/safety"
#: Too long to run a thousand times; shorter ones by the same rules remain.
LONG = (
    "tests/safety/test_streams.py::test_random_streams",
    "tests/safety/test_operations.py::TestOperated::runTest",
)
pytestmark = pytest.mark.full


def run(*command: str) -> str:
    """Output of a Python program here, in the short form of the tests; fails if it does."""
    env = os.environ | {"WMRT_FULL": "0", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_every_line_and_branch_is_reached(tmp_path: Path) -> None:
    data, report = f"--data-file={tmp_path / 'data'}", tmp_path / "report.json"
    quiet = ["-q", "-m", "not full", "-p", "no:cacheprovider", TESTS]
    source = f"--source={PACKAGE}"
    run("-m", "coverage", "run", "--branch", source, data, "-m", "pytest", *quiet)
    run("-m", "coverage", "json", data, "-o", str(report))
    files: dict[str, Any] = json.loads(report.read_text())["files"]
    assert {Path(name).name for name in files} == {p.name for p in (ROOT / PACKAGE).glob("*.py")}
    left = {
        name: (found["missing_lines"], found["missing_branches"])
        for name, found in files.items()
        if found["missing_lines"] or found["missing_branches"]
    }
    assert left == {}
    assert not any("pragma" in path.read_text("utf-8") for path in (ROOT / PACKAGE).glob("*.py"))
    assert sum(found["summary"]["num_branches"] for found in files.values()) > 100


def test_every_change_is_noticed_or_explained(tmp_path: Path) -> None:
    table = f"{TESTS}/mutants.json"
    result = tmp_path / "mutants.json"
    left_out = [word for test in LONG for word in ("--leave-out", test)]
    options = ["--explained", table, *left_out, "--json", str(result)]
    run("tools/mutate.py", PACKAGE, TESTS, *options)
    found = json.loads(result.read_text())["results"]
    assert found["unexplained"] == [] and found["needless"] == []
    assert found["mutants"] > 1_000
    assert found["killed"] + found["timeout"] + len(found["explained"]) == found["mutants"]
