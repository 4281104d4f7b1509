"""The tool that compares ways of finding codes, on commands that answer at once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tools.quantization as tool
from wmrt.core.errors import UsageError
from wmrt.core.seeds import HELD_OUT

EPISODES = 3
NEAREST = 0.08


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


class Commands:
    """Stands for `subprocess`: writes what each command would, and keeps what was asked."""

    def __init__(self, cut: float = 0.5) -> None:
        self.asked: list[list[str]] = []
        self.cut, self.status = cut, 0

    def run(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.asked.append(command)
        if self.status:
            return subprocess.CompletedProcess(command, self.status, "", "Traceback: it broke")
        file = Path(option(command, "--json"))
        kind = "next" if command[1].endswith(".py") else command[3]
        results = {"quantize": self.quantize, "drive": self.drive, "next": self.next}[kind](command)
        identity = {"resolved": {"steps": [{"kind": "of this arm"}]}}
        file.write_text(json.dumps({"identity": identity, "results": results}))
        return subprocess.CompletedProcess(command, 1 if kind == "next" else 0, "", "")

    def quantize(self, command: list[str]) -> dict[str, Any]:
        cut = {"rtn": 0.0, "best": self.cut}.get(option(command, "--steps"), 0.1)
        errors = [NEAREST * (1 - cut - 0.05), NEAREST * (1 - cut + 0.05)]
        layers = [
            {"layer": f"l{i}", "sqnr_db": 18.0 + i, "output_error": e, "nearest_error": NEAREST}
            for i, e in enumerate(errors)
        ]
        left = {"layer": "out", "sqnr_db": None, "output_error": None, "nearest_error": None}
        return {
            "layers": [*layers, left],
            "output_error": sum(errors) / 2,
            "nearest_error": NEAREST,
            "error": {"hidden": 0.05, "action": 0.06},
            "bytes": {"before": 9, "after": 4},
            "seconds": 1.5,
            "data": {"windows": int(option(command, "--windows")), "sha256": "ab"},
        }

    def drive(self, command: list[str]) -> dict[str, Any]:
        loss = 0.0 if option(command, "--recipe") == "bf16" else 1.0
        first, count = int(option(command, "--seed")), int(option(command, "--episodes"))
        return {
            "episodes": [{"seed": first + i, "return": 20.0 + i - loss} for i in range(count)],
        }

    def next(self, command: list[str]) -> dict[str, Any]:
        models = [command[i + 1] for i, word in enumerate(command) if word == "--model"]
        rows = [{"steps": steps, "model": steps / 10} for steps in (1, 5, 15)]
        last = HELD_OUT[int(option(command, "--episodes")) - 1]
        found = [{"model": model, "horizons": rows} for model in models]
        return {"models": found, "seeds": [HELD_OUT[0], last]}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    made = Commands()
    monkeypatch.setattr(tool, "subprocess", made)
    return made


def run(out: Path, *more: str) -> Any:
    options = ["--out", str(out / "arms"), "--episodes", str(EPISODES), "--windows", "4", *more]
    return CliRunner().invoke(tool.main, options, env={"COLUMNS": "200"})


def test_every_arm_is_packed_driven_and_compared(commands: Commands, tmp_path: Path) -> None:
    got = run(tmp_path, "--json", str(tmp_path / "r.json"))
    assert got.exit_code == 0, got.output
    results = json.loads((tmp_path / "r.json").read_text())["results"]
    assert [(a["recipe"], a["method"]) for a in results["arms"]] == list(tool.ARMS)
    assert {"rtn", "gptq", "best"} <= {a["method"] for a in results["arms"]}
    best = next(a for a in results["arms"] if a["method"] == "best")
    assert best["output_error"] == pytest.approx(NEAREST / 2)
    assert best["cut"] == pytest.approx(0.5)
    assert (best["worst_layer"], best["worst_cut"]) == ("l1", pytest.approx(0.45))
    assert best["weight_sqnr_db"] == 18.5 and best["steps"] == [{"kind": "of this arm"}]
    assert (best["return"], best["gap_to_bf16"], best["gap_ci95"]) == (20.0, -1.0, 0.0)
    assert best["next_state"] == {"1": 0.1, "5": 0.5, "15": 1.5}
    assert results["bf16"]["return"] == 21.0 and results["data"]["windows"] == 4
    assert results["verdicts"] == {
        form: {"cut": pytest.approx(0.5), "enough": True} for form in ("nvfp4", "mxfp4", "w4a8")
    }
    assert "nvfp4: best cuts 50%, at least 30%" in got.output


def test_all_arms_drive_the_same_seeds_without_breakers(commands: Commands, tmp_path: Path) -> None:
    run(tmp_path)
    drives = [command for command in commands.asked if command[3:4] == ["drive"]]
    assert len(drives) == len(tool.ARMS) + 1
    for command in drives:
        assert "--no-breakers" in command
        assert option(command, "--seed") == str(HELD_OUT[0])
        assert option(command, "--episodes") == str(EPISODES)
    # A float checkpoint drives as nvfp4 unless it is told otherwise.
    (reference,) = (command for command in drives if option(command, "--model") == "highway")
    assert option(reference, "--recipe") == "bf16"


def test_parts_are_kept_and_never_mixed(commands: Commands, tmp_path: Path) -> None:
    first = run(tmp_path)
    count = len(commands.asked)
    assert run(tmp_path).output == first.output and len(commands.asked) == count
    other = run(tmp_path, "--windows", "5")
    assert isinstance(other.exception, UsageError) and "other settings" in str(other.exception)
    part = tmp_path / "arms" / "mxfp4-rtn.quantize.json"
    document = json.loads(part.read_text())
    document["results"]["data"]["sha256"] = "cd"
    part.write_text(json.dumps(document))
    mixed = run(tmp_path)
    assert "mxfp4-rtn.quantize.json was calibrated on other windows" in str(mixed.exception)


def test_a_cut_that_is_too_small_falls_short(commands: Commands, tmp_path: Path) -> None:
    commands.cut = 0.29
    got = run(tmp_path, "--json", str(tmp_path / "r.json"))
    assert got.exit_code == 1 and "less than 30% for nvfp4, mxfp4, w4a8" in got.output
    assert (tmp_path / "r.json").exists()


@pytest.mark.parametrize("status", [1, 2])
def test_a_command_that_breaks_is_told(commands: Commands, tmp_path: Path, status: int) -> None:
    commands.status = status
    got = run(tmp_path)
    assert isinstance(got.exception, UsageError) and "it broke" in str(got.exception)
