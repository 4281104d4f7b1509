"""``wmrt init``: labelled, complete, the same bits per seed, and nothing half-written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.calls import line, run
from wmrt.model.checkpoint import load_checkpoint
from wmrt.runtime import WorldModel


def test_a_random_checkpoint_says_so_everywhere(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "random"
    arguments = ("--preset", "tiny", "--like", str(folder), "--seed", "3", "--out", str(out))
    results = run(tmp_path / "r.json", "init", *arguments)["results"]
    checkpoint = load_checkpoint(out, verify="always")
    assert checkpoint.provenance["weights"] == results["weights"] == "random, for speed only"
    assert "random" in (out / "README.md").read_text().splitlines()[0]
    assert "Random weights, for speed" in (out / "README.md").read_text()
    assert "random parameters" in capsys.readouterr().out
    assert results["bytes"] == (out / "model.safetensors").stat().st_size
    assert checkpoint.schema.hash == load_checkpoint(folder).schema.hash
    if sys.platform == "linux":
        assert results["peak_rss"]["bytes"] > results["bytes"]
    model = WorldModel.from_pretrained(out, recipe="nvfp4")
    assert model.report().resolved["recipe"] == "nvfp4"
    again = tmp_path / "again"
    run(tmp_path / "r.json", "init", *arguments[:-1], str(again))
    weights = (out / "model.safetensors").read_bytes()
    assert (again / "model.safetensors").read_bytes() == weights


def test_what_cannot_be_is_told_before_anything_is_drawn(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    out = ("--like", str(folder), "--out")
    assert "'2b'" in line(capsys, "init", "--preset", "2b", *out, str(tmp_path / "x"))
    assert "notes.txt" in line(capsys, "init", "--preset", "tiny", *out, str(full))
    wrong = ("--preset", "tiny", "--like", "nowhere", "--out", str(tmp_path / "x"))
    assert "no checkpoint" in line(capsys, "init", *wrong)
    assert (full / "notes.txt").read_text() == "mine" and not (tmp_path / "x").exists()
