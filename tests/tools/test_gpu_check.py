"""Around the sections of the look at a GPU: their time, their processes, what is written."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tools.gpu_support import let_go, setting
from tools import gpu_check, gpu_report, gpu_sections, gpu_there
from tools.gpu_check import SECTIONS, Section, child, in_a_process, main, run_all
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.runtime.bench.rounds import Effort

__all__ = ["let_go"]
ROOT = Path(__file__).resolve().parents[2]


def test_sections_are_there_and_fit_into_eight_minutes() -> None:
    every = (*SECTIONS, *gpu_check.BY_NAME)
    assert all(callable(getattr(gpu_sections, section.name)) for section in every)
    assert sum(section.seconds for section in SECTIONS) <= gpu_check.TOTAL <= 470
    assert set(gpu_sections.kernel_tests()) > {"tests.kernels.triton.test_gemv"}


def test_time_left_over_goes_to_the_next_and_what_is_late_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    given: dict[str, float] = {}

    def run(section: Section, limit: float, path: Path) -> dict[str, Any]:
        given[section.name] = limit
        now[0] += {"bandwidth": 5.0, "tests": 130.0, "capture": 65.0}[section.name]
        return {"verdict": "pass", "reason": "", "findings": {}}

    results = run_all(["bandwidth", "tests", "capture", "peer"], tmp_path, 202.0, run)
    assert given == {"bandwidth": 25.0, "tests": 130.0, "capture": 65.0}
    assert results["peer"] == {"verdict": "cut", "reason": "no time was left", "findings": {}}
    assert results["tests"]["limit"] == 130.0 and "seconds" not in results["peer"]


def test_a_process_that_hangs_is_ended_and_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "section-tests.json"
    write = "import json, sys, time, pathlib; p = pathlib.Path(sys.argv[-1]) / 'section-tests.json'"
    found = '{"verdict": "cut", "reason": "its time was over", "findings": {"x": 1}}'
    for end, verdict in (("time.sleep(60)", "cut"), ("sys.exit('out of luck')", "error")):
        fake = tmp_path / "python"
        fake.write_text(f"#!{sys.executable}\n{write}\np.write_text('{found}')\n{end}\n", "utf-8")
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))
        result = in_a_process(Section("tests", 5), 3, path)
        monkeypatch.undo()
        assert result["verdict"] == verdict and result["findings"] == {"x": 1}
    assert result["reason"] == "ended with status 1: out of luck"


def test_nothing_written_is_said(tmp_path: Path) -> None:
    assert gpu_check.read(tmp_path / "none.json")["reason"] == "it wrote nothing"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to look at")
def test_without_a_gpu_it_says_so_by_type(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="CUDA driver"):
        main(["--out", str(tmp_path / "out")])
    done = subprocess.run(
        ["bash", str(ROOT / "tools/gpu_check.sh"), str(tmp_path / "out")],
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("gpu_check: error: UnsupportedError: ")
    assert "CUDA driver" in done.stderr and "nvidia-smi" in done.stderr
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="--only speed: there are bandwidth, tests"):
        main(["--out", str(tmp_path), "--only", "bandwidth,speed"])


def test_it_refuses_before_torch_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long is left out: torch, triton, numpy are not loaded to say so."""
    code = (
        "import sys; from tools import gpu_check, gpu_there; gpu_there.refusal = lambda: 'none'\n"
        "try: gpu_check.main(['--out', sys.argv[1]])\n"
        "except Exception as e: print(e, {'torch', 'triton', 'numpy'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "none set()\n", done.stderr


class Driver:
    """libcuda as far as it is asked."""

    def __init__(self, code: int, count: int) -> None:
        self.code, self.count = code, count

    def cuInit(self, flags: int) -> int:
        return self.code

    def cuDeviceGetCount(self, to: Any) -> int:
        to._obj.value = self.count
        return 0


def test_the_driver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_there.refusal(lambda _: Driver(0, 1)) is None
    assert "no CUDA driver (libcuda.so.1 is not found)" in str(gpu_there.refusal(absent))
    assert "(its error 100); see that nvidia-smi" in str(
        gpu_there.refusal(lambda _: Driver(100, 0))
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    said = str(gpu_there.refusal(lambda _: Driver(0, 0)))
    assert "(it counts 0)" in said and "CUDA_VISIBLE_DEVICES='7' hides none" in said


def test_the_whole_run_writes_a_file_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = dict.fromkeys(("torch", "cuda", "triton", "python", "commit", "smi"), "1")
    monkeypatch.setattr(gpu_check, "identity", lambda: {"device": "Fake", "capability": 90, **what})
    small = setting(effort=Effort(rounds=1, steps=3, warm_up=1))
    names = ["bandwidth", "tests", "bench", "peer"]

    def run(section: Section, limit: float, path: Path) -> dict[str, Any]:
        if section.name == "tests":
            failures = [{"test": "test_x[0]", "reason": "it broke"}]
            findings = {"counts": {"passed": 3, "failed": 1}, "failures": failures}
            return {"verdict": "short", "reason": "1 failed", "findings": findings}
        return child(section.name, limit, path, small)

    assert main(["--out", str(tmp_path), "--only", ",".join(names)], run) == 1
    whole = json.loads((tmp_path / "gpu_check.json").read_text("utf-8"))
    assert whole["identity"]["device"] == "Fake"
    assert list(whole["results"]["sections"]) == names
    text = (tmp_path / "gpu_check.txt").read_text("utf-8")
    for line in ("Fake (sm_90)", "tests 3 passed, 1 failed", "test_x[0]: it broke", "copy "):
        assert line in text
    assert "captured back-to-back" in text and "missing" in text  # p99.9 of three steps


def test_the_table_of_nothing() -> None:
    what = {"device": "Fake", "capability": 90, "smi": None}
    what |= dict.fromkeys(("torch", "cuda", "triton", "python", "commit"), "1")
    cut = {"verdict": "cut", "reason": "no time was left", "findings": {}}
    text = "\n".join(gpu_report.lines(what, {"bench": cut}))
    assert "nvidia-smi: not told" in text and "bench      cut            no time was left" in text
