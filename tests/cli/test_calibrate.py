"""``wmrt calibrate``: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train.toys import episodes, folder, network_for
from wmrt.cli.main import main
from wmrt.control import Monitor
from wmrt.core.errors import CheckpointError
from wmrt.model.checkpoint import save_checkpoint
from wmrt.runtime import WorldModel
from wmrt.runtime.build import to_checkpoint


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> tuple[Path, Path]:
    """A checkpoint and a recording."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    network = network_for(episodes(6), seed)
    save_checkpoint(tmp_path / "model", to_checkpoint(network, None, {}), card="# toy")
    return tmp_path / "model", folder(tmp_path / "data", episodes(18, 10))


def test_it_writes_what_the_monitor_reads(
    parts: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = map(str, parts)
    result = tmp_path / "result.json"
    recipes = ["--recipe", "bf16", "--recipe", "w4a8"]
    command = ["calibrate", model, "--data", data, *recipes, "--false-alarms", "0.2"]
    assert main([*command, "--json", str(result)]) == 0
    said = capsys.readouterr().out
    assert "bf16: at most 0.2 false alarms per drive" in said and "w4a8: " in said
    written = json.loads((parts[0] / "monitor.json").read_text())
    assert json.loads(result.read_text())["results"] == written
    for recipe in ("bf16", "w4a8"):
        Monitor.of(WorldModel.from_pretrained(model, recipe=recipe), model)
    with pytest.raises(CheckpointError, match="no calibration for recipe 'nvfp4'"):
        Monitor.of(WorldModel.from_pretrained(model, recipe="nvfp4"), model)
    # elsewhere, under the default recipe
    out = tmp_path / "other.json"
    assert main([*command[:4], "--false-alarms", "0.2", "--out", str(out)]) == 0
    Monitor.of(WorldModel.from_pretrained(model, recipe="nvfp4"), out)
    assert json.loads((parts[0] / "monitor.json").read_text()) == written


def test_refusals(parts: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model, data = map(str, parts)
    cases = {
        "12 drives for the threshold cannot promise 0.03": [],
        "unknown recipe 'int3'": ["--recipe", "int3"],
        "give each once": ["--recipe", "bf16", "--recipe", "bf16"],
        "is not in the range": ["--false-alarms", "1"],
    }
    for message, options in cases.items():
        capsys.readouterr()
        assert main(["calibrate", model, "--data", data, *options]) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (parts[0] / "monitor.json").exists()
