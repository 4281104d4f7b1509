"""The tests of kernels on a GPU: where nothing else is installed, in several processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import gpu_tests

ROOT = Path(__file__).resolve().parents[2]


#: What a bare machine lacks.
ABSENT = (
    *("click", "rich", "gymnasium", "highway_env", "huggingface_hub", "matplotlib", "fastapi"),
    *("pytest", "hypothesis", "ml_dtypes", "tqdm"),
)


BARE = """
import sys
from pathlib import Path
for name in {absent}:
    sys.modules[name] = None
from tests.runtime.tape import TapeBackend
from tools import gpu_check, gpu_report, gpu_sections
given = dict(preset="tiny", device="cpu", backend=TapeBackend, compared=2, workers={workers})
setting = gpu_sections.Setting(**given)
gpu_sections.kernel_tests = lambda: ["tests.kernels.triton.test_norm"]
out = Path({out!r})
found = gpu_check.child("tests", 60, out / "tests.json", setting)
assert found["verdict"] == "pass" and set(found["findings"]["files"]) == {{"test_norm"}}, found
print(found["findings"]["counts"])
gpu_sections.RECIPES = ("nvfp4",)
assert gpu_check.child("capture", 60, out / "capture.json", setting)["verdict"] == "pass"
"""


def bare(tmp_path: Path, workers: int) -> str:
    code = BARE.format(absent=ABSENT, out=str(tmp_path), workers=workers)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_runs_where_nothing_else_is_installed(tmp_path: Path) -> None:
    assert re.search(r"'passed': \d\d", bare(tmp_path, 1))


@pytest.mark.full  # two processes more, that load torch
def test_processes_share_the_tests(tmp_path: Path) -> None:
    assert bare(tmp_path, 2).splitlines()[0] == bare(tmp_path, 1).splitlines()[0]


def test_processes_that_end_without_a_word_are_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_tests, "_work", os.abort)  # its arguments are too many as well
    outcomes = list(gpu_tests.run([], 1, 30.0, "cpu", 2))
    assert [o.result for o in outcomes] == ["failed"]
    assert outcomes[0].reason == "2 ended without saying so, or hung"
