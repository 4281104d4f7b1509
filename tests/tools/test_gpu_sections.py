"""The sections of the look at a GPU, on a stand-in for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime import rowwise
from tests.runtime.tape import Tape, TapeBackend
from tests.tools.gpu_support import let_go, look, setting
from tools import gpu_group, gpu_report, gpu_sections
from wmrt.kernels.triton.variants import variant
from wmrt.runtime.cuda_graph import CudaGraphExecutor

__all__ = ["let_go"]


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
