"""``wmrt gates`` on tiny checkpoints: the simulator is doubled, everything else runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import line
from tests.train.toys import CONFIG, episodes, network_for
from tests.train.toys import folder as record
from wmrt.cli.driving.plan import Plan
from wmrt.cli.gating import drives
from wmrt.cli.main import main
from wmrt.core.errors import MissingExtraError, UnsupportedError
from wmrt.model.checkpoint import save_checkpoint
from wmrt.runtime import probe
from wmrt.runtime.build import to_checkpoint


@dataclass
class Driven:
    row: dict[str, Any]


@pytest.fixture
def model(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = network_for(episodes(4), seed, CONFIG)
    made = to_checkpoint(network, None, {"env": "toy/Toy-v0"})
    save_checkpoint(tmp_path / "toy", made, card="# toy")
    return tmp_path / "toy"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return record(tmp_path / "data", episodes(4, steps=60))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe's work in this process and shorter: a process of its own takes seconds to start.
    Other tests' tensors live here too, so none of them is taken for a copy."""
    monkeypatch.setattr(probe, "STEPS", 3)
    monkeypatch.setattr(probe, "float_copies", lambda model: [])
    monkeypatch.setattr(probe, "probe", lambda folder: probe.main(str(folder), "", "cpu"))


def driven(monkeypatch: pytest.MonkeyPatch, packed: float, bf16: float = 10.0) -> list[Plan]:
    """Every seed returns the same, by arm; returns the plans asked for."""
    asked: list[Plan] = []

    def drive(plan: Plan, seeds: range, jobs: int, advance: Any) -> Any:
        asked.append(plan)
        value = bf16 if plan.recipe == "bf16" else packed
        return [Driven({"seed": s, "return": value + s % 3, "crashed": False}) for s in seeds]

    monkeypatch.setattr(drives, "drive_in_processes", drive)
    return asked


def gates(document: dict[str, Any]) -> dict[str, str]:
    return {name: gate["verdict"] for name, gate in document["results"]["gates"].items()}


def test_every_gate_has_a_verdict_and_its_evidence(
    model: Path,
    recording: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = driven(monkeypatch, packed=9.9)
    options = ("--recipe", "nvfp4", "--data", str(recording), "--episodes", "5")
    path = tmp_path / "g.json"
    status = main(["gates", str(model), *options, "--json", str(path)])
    document = json.loads(path.read_text())
    found = document["results"]["gates"]
    assert list(found) == ["G1", "G2", "G3", "G4"]
    verdicts = gates(document)
    opened = found["G2"]["evidence"]["open_loop"]
    # Nobody trained this model: under one seed in many its 4 bits predict worse than no change.
    lost = any(
        mine["model"] >= mine["persistence"] and theirs["model"] < theirs["persistence"]
        for mine, theirs in zip(opened["packed"], opened["bf16"], strict=True)
    )
    assert (verdicts["G1"], verdicts["G2"]) == ("pass", "fail" if lost else "pass")
    assert "bf16 takes" in found["G4"]["evidence"]["reason"]  # how long is this machine's affair
    assert status == (1 if "fail" in verdicts.values() else 0)
    linears = found["G1"]["evidence"]["linears"]
    assert {row["kernel"] for row in linears if row["layer"].startswith("blocks")} == {
        "linear_nvfp4_a8.native"
    }
    assert all(row["excluded"] for row in linears if row["layer"].startswith("action_head"))
    evidence = found["G2"]["evidence"]
    assert len(evidence["open_loop"]["layers"]) == 8 and evidence["closed_loop"]["seeds"] == 5
    assert found["G3"]["evidence"]["file_difference"] == 0.0
    assert [plan.recipe for plan in asked] == [None, "bf16"]
    assert not any(plan.breakers or plan.deadline for plan in asked)
    said = capsys.readouterr().out
    assert "weight SQNR" in said and "every recipe does" in said and "persistence" in said


@pytest.mark.usefixtures("here")
def test_a_worse_return_fails_and_so_does_the_command(
    model: Path, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a checkpoint that is packed already, against the one it was packed from."""
    packed = tmp_path / "packed"
    assert main(["quantize", str(model), "--recipe", "mxfp4", "--out", str(packed)]) == 0
    driven(monkeypatch, packed=5.0)
    path = tmp_path / "g.json"
    options = ("--against", str(model), "--data", str(recording), "--episodes", "5")
    assert main(["gates", str(packed), *options, "--json", str(path)]) == 1
    document = json.loads(path.read_text())
    assert document["identity"]["recipe"] == "mxfp4" and gates(document)["G2"] == "fail"


@pytest.mark.usefixtures("here")
def test_without_the_simulator_the_rest_is_judged(
    model: Path, recording: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def absent(*_: object) -> Any:
        raise MissingExtraError("highway_env is not installed; run: pip install 'wmrt[drive]'")

    monkeypatch.setattr(drives, "drive_in_processes", absent)
    path = tmp_path / "g.json"
    main(["gates", str(model), "--recipe", "bf16", "--data", str(recording), "--json", str(path)])
    found = json.loads(path.read_text())["results"]["gates"]
    assert found["G1"]["verdict"] == "pass" and found["G2"]["verdict"] == "missing"
    assert "pip install 'wmrt[drive]'" in found["G2"]["evidence"]["reason"]
    assert found["G2"]["evidence"]["open_loop"]["windows"] > 0


@pytest.mark.usefixtures("here")
def test_what_has_no_counterpart_is_not_compared(
    model: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = tmp_path / "random"
    made = ("--preset", "tiny", "--like", str(folder), "--out", str(random))
    assert main(["init", *made]) == 0
    packed = tmp_path / "packed"
    assert main(["quantize", str(random), "--recipe", "nvfp4", "--out", str(packed)]) == 0
    asked = driven(monkeypatch, packed=9.0)
    path = tmp_path / "g.json"
    main(["gates", str(packed), "--against", str(random), "--json", str(path)])
    assert gates(json.loads(path.read_text()))["G2"] == "not comparable" and not asked


def test_requests_that_cannot_be_meant(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give the --recipe" in line(capsys, "gates", str(model))
    assert "unknown recipe" in line(capsys, "gates", str(model), "--recipe", "nvfp5")
    twice = ("--recipe", "nvfp4", "--against", str(model))
    assert "leave out --against" in line(capsys, "gates", str(model), *twice)
    assert "no checkpoint" in line(capsys, "gates", "nowhere", "--recipe", "nvfp4")


def test_a_recipe_nobody_computes_is_unsupported(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Any:
        raise UnsupportedError("no native linear for weights 'nvfp4'")

    monkeypatch.setattr(probe, "probe", refuse)
    path = tmp_path / "g.json"
    assert main(["gates", str(model), "--recipe", "nvfp4", "--json", str(path)]) == 1
    found = json.loads(path.read_text())["results"]["gates"]
    assert [gate["verdict"] for gate in found.values()] == ["unsupported", *["missing"] * 3]
    assert all("G1 unsupported" in found[name]["evidence"]["reason"] for name in ("G2", "G3", "G4"))
