"""The command around the compilations, which are answered at once here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tools import aot_check
from wmrt.core.errors import UsageError
from wmrt.kernels.triton import aot, aot_cases, library

CASES = aot_cases.cases()


class Compiler:
    """Stands for the compiler: gives every case the same figures."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.figures = {
            "registers": 32,
            "stack_bytes": 0,
            "local_accesses": 0,
            "shared_bytes": 0,
            "barriers": 0,
            "instructions": 100,
            "looped": True,
            "weights_loaded": 1,
            "weight_load_bits": 128,
            "instructions_per_weight": 1.0,
            "early_reads": [],
            "cubin_bytes": 1,
            "seconds": 0.25,
        }

    def compile(self, case: Any, capability: int) -> Any:
        self.asked.append((case.name, capability))
        return case

    def measure(self, case: Any) -> dict[str, Any]:
        return {**self.figures, "found": dict.fromkeys(case.instructions, 1)}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(aot, "compile_case", made.compile)
    monkeypatch.setattr(aot, "measure", made.measure)
    monkeypatch.setattr(aot_check, "KEPT", tmp_path / "aot")
    return made


def run(*options: str) -> Any:
    return CliRunner().invoke(aot_check.main, options, env={"COLUMNS": "120"})


def test_every_case_for_all_of_its_targets(compiler: Compiler, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    got = run("--json", str(file))
    assert got.exit_code == 0, got.output
    assert compiler.asked == [(case.name, t) for case in CASES for t in case.targets]
    document = json.loads(file.read_text())
    assert document["identity"]["triton"] and document["identity"]["commit"]
    rows = document["results"]["rows"]
    assert [(row["case"], row["capability"]) for row in rows] == compiler.asked
    assert rows[0]["figures"]["registers"] == 32 and rows[0]["violations"] == []
    assert document["results"]["seconds"] == 0.25 * len(rows)
    assert f"{CASES[0].name} " in got.output


def test_a_broken_limit_ends_with_status_1_and_its_reason(
    compiler: Compiler, tmp_path: Path
) -> None:
    compiler.figures["stack_bytes"] = 8
    got = run("--case", "rms_norm.256", "--target", "87", "--json", str(tmp_path / "r.json"))
    assert got.exit_code == 1 and compiler.asked == [("rms_norm.256", 87)]
    assert "rms_norm.256 sm_87: stack_bytes 8, at most 0: A stack is memory traffic" in got.output
    assert "falls short: 1 of 1 compilations: rms_norm.256 sm_87" in got.output
    assert (tmp_path / "r.json").is_file()


def test_worse_than_kept_ends_with_status_1(compiler: Compiler) -> None:
    assert run("--keep").exit_code == 0
    assert aot_check.kept_path().is_file()
    assert run().exit_code == 0
    compiler.figures["registers"] = 33
    got = run()
    assert got.exit_code == 1 and "rms_norm.256 sm_87: registers 33, was 32" in got.output
    assert run("--keep").exit_code == 0 and run().exit_code == 0


def test_what_no_assembler_is_there_for_is_left_out(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "triton_version", lambda: (3, 6))
    got = run("--case", "rms_norm.256")
    assert got.exit_code == 0 and "left out: this triton has no assembler for sm_110" in got.output
    assert [target for _, target in compiler.asked] == [87, 89, 90, 120]


def test_keeping_some_leaves_the_others(compiler: Compiler) -> None:
    assert run("--keep").exit_code == 0
    whole = aot_check.kept()
    compiler.figures |= {"registers": 31, "seconds": 1.25}
    assert run("--keep", "--case", "rms_norm.256", "--target", "87").exit_code == 0
    now = aot_check.kept()
    assert [row["case"] for row in now] == [row["case"] for row in whole]
    changed = [row for row, old in zip(now, whole, strict=True) if row != old]
    assert [(r["case"], r["capability"]) for r in changed] == [("rms_norm.256", 87)]
    assert changed[0]["figures"]["registers"] == 31
    document = json.loads(aot_check.kept_path().read_text("utf-8"))
    assert document["results"]["seconds"] == 0.25 * (len(whole) - 1) + 1.25
    path = aot_check.kept_path()
    document["results"]["rows"][0]["case"] = "gone"
    path.write_text(json.dumps(document), "utf-8")
    assert run("--keep", "--case", "rms_norm.256").exit_code == 0
    assert "gone" not in {row["case"] for row in aot_check.kept()}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--case", "gemm*"), r"--case 'gemm\*': there are action_decode"),
        (("--target", "75"), r"--target 75: kernels are made for \[87, 89"),
    ],
)
def test_options_are_checked(compiler: Compiler, options: tuple[str, ...], says: str) -> None:
    got = run(*options)
    assert isinstance(got.exception, UsageError)
    with pytest.raises(UsageError, match=says):
        raise got.exception
