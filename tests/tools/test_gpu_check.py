"""The look at a GPU as far as it goes without one: sections on a stand-in, the way around them."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime import rowwise
from tests.runtime.tape import Tape, TapeBackend
from tools import gpu_check, gpu_group, gpu_report, gpu_sections, gpu_tests, gpu_there
from tools.gpu_check import SECTIONS, Section, child, in_a_process, main, run_all
from wmrt.core import frozen_garbage
from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton.variants import variant
from wmrt.runtime.bench.rounds import Effort
from wmrt.runtime.cuda_graph import CudaGraphExecutor

ROOT = Path(__file__).resolve().parents[2]
#: What a bare machine lacks.
ABSENT = (
    *("click", "rich", "gymnasium", "highway_env", "huggingface_hub", "matplotlib", "fastapi"),
    *("pytest", "hypothesis", "ml_dtypes", "tqdm"),
)


def setting(**changes: Any) -> gpu_sections.Setting:
    given = {
        "preset": "tiny",
        "device": "cpu",
        "backend": TapeBackend,
        "compile": lambda run, **options: run,
        "buffer": 2**20,
        "rate_hz": 100,
        "deadline_ms": 1000.0,
        "paced": 6,
        "effort": Effort(rounds=2, steps=6, warm_up=1),
        "flat": 16,
        "compared": 3,
        "workers": 1,
        **changes,
    }
    return gpu_sections.Setting(**given)


@pytest.fixture(autouse=True)
def let_go(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also a section that fails gives back what it held. Collections take 0.1 s each here."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
    monkeypatch.setattr(gpu_sections, "RECIPES", ("bf16", "nvfp4"))
    yield
    assert frozen_garbage._holders == 0


def look(section: str, tmp_path: Path, **changes: Any) -> dict[str, Any]:
    path = tmp_path / f"{section}.json"
    found = child(section, 60, path, setting(**changes))
    assert json.loads(path.read_text("utf-8")) == json.loads(json.dumps(found, default=str))
    return found


def test_bandwidth(tmp_path: Path) -> None:
    found = look("bandwidth", tmp_path)
    assert found["verdict"] == "pass" and found["findings"]["gb_per_s"] > 0


def test_capture_compares_replays_with_eager_steps(tmp_path: Path) -> None:
    found = look("capture", tmp_path)
    assert found["verdict"] == "pass", found
    assert list(found["findings"]) == list(gpu_sections.RECIPES)
    nvfp4 = found["findings"]["nvfp4"]
    assert nvfp4["different"] == [] and nvfp4["steps"] == 3
    assert nvfp4["graph"]["resolved"] == "cuda graph"
    assert nvfp4["kernels"] == {"linear_nvfp4_a8.reference": 8, "linear_bf16.torch": 2}


def test_a_replay_that_differs_later_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sections, "RECIPES", ("bf16",))

    class Late(TapeBackend):
        """Right while it is proved, wrong afterwards."""

        def capture(self, run: Any, generators: Any) -> Tape:
            tape, right = super().capture(run, generators), Tape.replay

            def replay() -> None:
                right(tape)
                if tape.replays > 6:
                    with torch.inference_mode():
                        self.buffers["chunk"].add_(1.0)

            monkeypatch.setattr(tape, "replay", replay)
            return tape

    found = look("capture", tmp_path, backend=Late)
    assert (found["verdict"], found["reason"]) == ("short", "replays differ from eager steps: bf16")
    assert found["findings"]["bf16"]["different"] == ["chunk"]


def group(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    small = {"robots": 3, "grouped": 1, "captures": TapeBackend, "ops": rowwise.OPS}
    return look("group", tmp_path, **small, **changes)


def test_robots_of_a_group_are_compared_with_each_alone(tmp_path: Path) -> None:
    found = group(tmp_path)
    assert found["verdict"] == "pass", found
    got = found["findings"]
    assert got["compared"] == {"steps": 3, "different": []}
    assert list(got["step_ms"]) == ["1", "2", "3"] and got["report"]["graph"]
    assert sum(got["report"]["ran"].values()) == 3 + 3 * 21
    what = {"device": "Fake", "capability": 90, "smi": None}
    what |= dict.fromkeys(("torch", "cuda", "triton", "python", "commit"), "1")
    assert "group: 3 robots " in "\n".join(gpu_report.lines(what, {"group": found}))


def test_a_robot_that_is_another_one_in_a_group_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = gpu_group.TritonGroup.step

    def swapped(group: Any, robots: Any, *given: Any) -> Any:
        return step(group, [(robot + 1) % 3 for robot in robots], *given)

    monkeypatch.setattr(gpu_group.TritonGroup, "step", swapped)
    found = group(tmp_path)
    assert found["verdict"] == "short" and "ring keys" in found["reason"]


def test_bench_has_a_row_for_each_recipe_and_their_ratios(tmp_path: Path) -> None:
    found = look("bench", tmp_path)
    assert found["verdict"] == "pass", found
    arms = found["findings"]["arms"]
    assert [arm["recipe"] for arm in arms] == list(gpu_sections.RECIPES)
    for arm in arms:
        assert arm["step_ms"]["n"] == 6 and arm["ratio_to_floor"] > 0
        parts = arm["segments_ms"]
        assert set(parts) == {"copy", "enqueue", "wait"}
        assert arm["detail"]["weights"] == "random, for speed only"
    assert arms[0]["read_bytes"] > arms[1]["read_bytes"]
    assert len(found["findings"]["ratios"]) == 1
    assert all(pair["comparable"] for pair in found["findings"]["ratios"])


def test_launches_are_compared_in_every_way_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = look("launches", tmp_path)
    assert found["verdict"] == "pass", found
    ways = ["plain", "ahead", "dependent", "both"]
    assert [arm["name"] for arm in found["findings"]["arms"]] == ways
    assert len(found["findings"]["ratios"]) == 6  # every pair
    with_cuda = gpu_sections.Setting(device="cuda")
    for capability, there in ((89, ways[:2]), (90, ways)):
        monkeypatch.setattr(gpu_sections, "capability", lambda place, c=capability: c)
        assert list(gpu_sections.ways(with_cuda)) == there


def test_an_arm_is_captured_with_its_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    prepare = CudaGraphExecutor.prepare

    def looking(executor: Any) -> Any:
        seen.append(variant(90))
        return prepare(executor)

    monkeypatch.setattr(CudaGraphExecutor, "prepare", looking)
    for way in gpu_sections.ways(setting()).values():
        with gpu_sections.captured(setting(), "nvfp4", **way):
            pass
    table = variant(90).ahead_kib
    kinds = [(one.dependent, one.ahead_kib) for one in seen]
    assert kinds == [(False, 0), (False, table), (True, 0), (True, table)] and table


def test_peer_is_one_and_says_what_ran(tmp_path: Path) -> None:
    found = look("peer", tmp_path)
    assert found["verdict"] == "pass", found
    own, other = found["findings"]["arms"]
    assert (own["role"], other["role"]) == ("own", "peer")
    assert other["detail"]["graph"]["resolved"] == "torch.compile reduce-overhead"


def test_a_compiler_that_fails_is_an_unsupported_peer(tmp_path: Path) -> None:
    def refuse(run: Any, **options: Any) -> Any:
        def called() -> None:
            raise ValueError("no compiler\nat all")

        return called

    found = look("peer", tmp_path, compile=refuse)
    assert found["verdict"] == "error"
    assert "torch.compile cannot be had: ValueError: no compiler" in found["reason"]
    assert "UnsupportedError" in found["traceback"]


def test_jitter_counts_misses_with_their_cause(tmp_path: Path) -> None:
    found = look("jitter", tmp_path)
    assert found["verdict"] == "pass", found
    arm = found["findings"]["arm"]
    assert (arm["mode"], arm["rate_hz"], arm["deadline_misses"]) == ("paced", 100.0, 0)
    found = look("jitter", tmp_path, deadline_ms=1e-6)
    assert found["verdict"] == "short" and found["reason"] == "6 of 6 steps missed the deadline"
    causes = found["findings"]["misses"]["causes"]
    assert causes == {"the median step is above the deadline": 6}


def test_memory_is_read_and_a_planted_leak_looked_for(tmp_path: Path) -> None:
    found = look("memory", tmp_path)
    assert found["findings"]["host"]["planted_bytes_per_1000_steps"] is not None
    assert found["findings"]["device"] == {"before": None, "after": None}


def test_a_section_that_cannot_be_captured_is_an_error(tmp_path: Path) -> None:
    found = look("jitter", tmp_path, backend=lambda b: TapeBackend(b, unavailable="no device"))
    assert found["verdict"] == "error"
    assert found["reason"].startswith("UnsupportedError: graph=on cannot be had: no device")


# -- around the sections --------------------------------------------------------------------------


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
