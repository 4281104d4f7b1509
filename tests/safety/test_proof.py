"""Whether these tests are enough: every line and branch is reached."""

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
