"""What ``wmrt doctor`` says of the native library and of real time."""

from __future__ import annotations

import functools
import json
import sys
import types
from pathlib import Path
from typing import Any

import click
import pytest

from wmrt.cli import doctor as verb
from wmrt.cli.main import VERBS, main
from wmrt.core import machine
from wmrt.kernels.native import library as native


def doctor(path: Path, *more: str) -> tuple[int, Any]:
    """Exit status and results of ``wmrt doctor``."""
    status = main(["doctor", *more, "--json", str(path)])
    return status, json.loads(path.read_text())["results"]


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")


@pytest.mark.usefixtures("wide")
def test_it_names_what_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WMRT_ISA", raising=False)
    usable = [isa.name for isa in native.usable_isas()]
    status, results = doctor(tmp_path / "r.json")
    assert status == 0
    assert results["native"] == {
        "path": str(native.PATH),
        "usable": usable,
        "isa": native.isa().name,
        "asked": None,
        "error": None,
    }
    assert f"{native.isa().name} (the best of {', '.join(usable)})" in capsys.readouterr().out
    assert results["realtime"]["huge_pages"] == machine.huge_pages()
    assert results["cpu"]["physical"] == len(machine.physical_cpus())


@pytest.mark.usefixtures("wide")
def test_it_names_the_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WMRT_CODEC", "python")
    status, results = doctor(tmp_path / "r.json")
    assert status == 0 and results["codec"] == {
        **{"requested": "python", "resolved": "python", "reason": "", "error": None}
    }
    monkeypatch.setenv("WMRT_CODEC", "rust")
    status, results = doctor(tmp_path / "r.json")
    assert status == 1 and results["codec"]["resolved"] is None
    assert "WMRT_CODEC='rust': auto, c, python" in capsys.readouterr().out


@pytest.mark.usefixtures("wide")
def test_the_gpu_step_is_looked_at_when_asked_or_where_there_is_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = {"version": "2", "threads": 1, "cuda": [], "error": None}
    monkeypatch.setattr(verb, "torch_facts", lambda: torch)
    assert doctor(tmp_path / "r.json")[1]["graph"] is None
    assert "not looked at: wmrt doctor --graph" in capsys.readouterr().out
    torch["cuda"] = ["some GPU"]
    monkeypatch.setattr(verb, "graph_facts", functools.cache(verb.graph_facts))  # it takes seconds
    for arguments in ((), ("--graph",)):
        status, results = doctor(tmp_path / "r.json", *arguments)
        assert status == 0 and results["graph"]["clean"] and results["graph"]["launches"] == 21
        said = "graph lint: clean (21 operators of small nvfp4)"
        assert said in capsys.readouterr().out
        torch["cuda"] = []


@pytest.mark.usefixtures("wide")
def test_a_gpu_step_that_cannot_be_captured_falls_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wmrt.runtime.triton_state import TritonState

    compute = TritonState.compute

    def waits(state: TritonState) -> None:
        compute(state)
        state.arrays["x"].sum().item()

    monkeypatch.setattr(TritonState, "compute", waits)
    status, results = doctor(tmp_path / "r.json", "--graph")
    assert status == 1 and not results["graph"]["capturable"]
    said = "".join(capsys.readouterr())
    assert said.count("host synchronisation at tests/cli/test_doctor.py:") == 2  # table and reason
    assert "the GPU step cannot be captured as a CUDA Graph: graph lint:" in said


@pytest.mark.usefixtures("wide")
def test_it_tells_what_wmrt_isa_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WMRT_ISA", "portable")
    status, results = doctor(tmp_path / "r.json")
    assert status == 0 and results["native"]["isa"] == results["native"]["asked"] == "portable"
    assert "portable (by WMRT_ISA of portable" in capsys.readouterr().out
    monkeypatch.setenv("WMRT_ISA", "sse9")
    status, results = doctor(tmp_path / "r.json")
    assert status == 1 and results["native"]["isa"] is None
    assert "falls short: WMRT_ISA='sse9' is no instr" in capsys.readouterr().err


@pytest.mark.usefixtures("wide")
def test_a_library_that_was_not_built_is_only_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "PATH", tmp_path / "_native.so")
    monkeypatch.setattr(native, "_library", None)
    status, results = doctor(tmp_path / "r.json")
    assert status == 0 and results["native"]["path"] is None
    assert "not built" in results["native"]["error"]
    assert "native" in (said := capsys.readouterr()).out and "is not built" in said.out


def damage(path: Path) -> None:
    path.write_bytes(native.PATH.read_bytes()[:5_000])


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "_native.so"
    damage(path)
    monkeypatch.setattr(native, "PATH", path)
    monkeypatch.setattr(native, "_library", None)
    return path


def test_a_damaged_library_is_told(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, results = doctor(tmp_path / "r.json")
    assert status == 1 and results["native"]["path"] == str(damaged)
    assert "is damaged: 5000 bytes" in capsys.readouterr().err


@pytest.mark.parametrize("isa", ["sse9", "neon-dotprod", "avx512-vnni"])
def test_a_verb_that_needs_an_instruction_set_ends_with_status_2(
    isa: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if isa in [one.name for one in native.usable_isas()]:
        isa = "neon-dotprod" if isa == "avx512-vnni" else "avx512-vnni"
    monkeypatch.setenv("WMRT_ISA", isa)
    error = run(native.isa, monkeypatch, capsys)
    assert "WMRT_ISA=" in error and isa in error and "usable here are portable" in error


def test_a_verb_that_needs_a_damaged_library_ends_with_status_2(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is damaged: 5000 bytes" in run(native.library, monkeypatch, capsys)


def test_a_verb_that_needs_an_absent_library_ends_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "PATH", tmp_path / "_native.so")
    monkeypatch.setattr(native, "_library", None)
    assert "not built" in run(native.library, monkeypatch, capsys)


def run(needs: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a verb which calls ``needs`` ends with."""
    module = types.ModuleType("wmrt.cli.fake")
    module.command = click.Command("fake", callback=needs)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wmrt.cli.fake", module)
    monkeypatch.setitem(VERBS, "fake", "A verb of the tests.")
    assert main(["fake"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("wmrt: error: ") and error.count("\n") == 1
    return error
