"""``wmrt grow`` on a tiny checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.calls import line, run
from tests.runtime.models import states
from tests.train.growing import PRESET, larger, outputs, small
from tests.train.recordings import recording
from wmrt.cli.main import main
from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
from wmrt.model.config import PRESETS
from wmrt.model.grown import grown_note
from wmrt.runtime import WorldModel
from wmrt.train.grow_walk import random_streams


@pytest.fixture
def source(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checkpoint = small(seed)
    monkeypatch.setitem(PRESETS, "large", larger(checkpoint, **PRESET))
    monkeypatch.setitem(PRESETS, "thin", larger(checkpoint, d_model=64))
    save_checkpoint(tmp_path / "trained", checkpoint, card="# trained")
    return tmp_path / "trained"


def _grow(source: Path, out: Path, *more: str, preset: str = "large") -> tuple[str, ...]:
    return ("grow", str(source), "--preset", preset, "--out", str(out), *more)


def test_a_grown_checkpoint_acts_as_its_source_and_says_what_it_is(
    source: Path, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "grown"
    results = run(tmp_path / "g.json", *_grow(source, out, "--seed", "4"))["results"]
    made = load_checkpoint(out, verify="always")
    assert results["parameters"] == made.provenance["parameters"]
    assert results["bytes"] == (out / "model.safetensors").stat().st_size
    assert results["check"]["failures"] == [] and results["check"]["steps"] == 15
    assert results["weights_sha256"] == load_checkpoint(source).weights_sha256
    for said in ((out / "README.md").read_text(), capsys.readouterr().out):
        assert "same policy" in said and "no added skill" in said
    card = (out / "README.md").read_text()
    assert results["weights_sha256"] in card and f"{results['parameters']:,} parameters" in card
    assert "no added skill" in str(grown_note(made.provenance))
    assert grown_note(load_checkpoint(source).provenance) is None
    streams = random_streams(made.schema, 2, 2, 15, seed)
    expected, got = (outputs(load_checkpoint(p), streams)["action"] for p in (source, out))
    assert float((got - expected).abs().max()) < 2.0**-10 * float(expected.std())
    model = WorldModel.from_pretrained(out, recipe="nvfp4")
    assert all(abs(model.step(state).chunk).max() <= 1 for state in states(made.schema, 3, seed))
    assert main(["inspect", str(out)]) == 0
    assert "no added skill" in capsys.readouterr().out


def test_packed_it_still_says_so(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, packed = tmp_path / "grown", tmp_path / "packed"
    assert main(list(_grow(source, out, "--check-steps", "2"))) == 0
    assert main(["quantize", str(out), "--recipe", "nvfp4", "--out", str(packed)]) == 0
    assert "no added skill" in (packed / "README.md").read_text()
    assert grown_note(load_checkpoint(packed).provenance) is not None


def test_the_same_seed_writes_the_same_bits_and_recordings_are_read(
    source: Path, tmp_path: Path
) -> None:
    data = recording(tmp_path / "data", steps=14)
    found = []
    for name in ("a", "b"):
        arguments = _grow(source, tmp_path / name, "--data", str(data), "--check-steps", "13")
        arguments += ("--recipe", "nvfp4") if name == "a" else ()
        found.append(run(tmp_path / f"{name}.json", *arguments)["results"])
    assert found[0]["check"] == found[1]["check"] and found[0]["check"]["robots"] == 3
    assert found[0]["data"] == ["data"]
    packed = found[0]["recipes"]["nvfp4"]
    assert packed["steps"] == 7
    assert packed["grown"]["action_rms"] > 0 and packed["source"]["action_rms"] > 0
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]


def test_what_the_check_refuses_is_not_written(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import wmrt.train.grow as growing

    real = growing.expand

    def wrong(name: str, *rest: Any) -> torch.Tensor:
        grown = real(name, *rest)
        return grown * 2 if name == "action_head.hidden.weight" else grown

    monkeypatch.setattr(growing, "expand", wrong)
    out, file = tmp_path / "grown", tmp_path / "g.json"
    assert main([*_grow(source, out), "--json", str(file)]) == 1
    said = capsys.readouterr().err
    assert "falls short: actions differ by" in said and "nothing was written" in said
    assert not out.exists() and '"failures"' in file.read_text()


def test_what_cannot_be_is_one_line(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x"
    assert "'2b' is unknown" in line(capsys, *_grow(source, out, preset="2b"))
    assert "d_model 64 must be" in line(capsys, *_grow(source, out, preset="thin"))
    assert "no checkpoint" in line(capsys, *_grow(tmp_path / "nowhere", out))
    assert "itself" in line(capsys, *_grow(source, source))
    few = recording(tmp_path / "few", episodes=2, steps=7)
    said = line(capsys, *_grow(source, out, "--data", str(few), "--check-steps", "600"))
    assert "record more" in said
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    assert "notes.txt" in line(capsys, *_grow(source, full))
    packed = tmp_path / "packed"
    assert main(["quantize", str(source), "--recipe", "nvfp4", "--out", str(packed)]) == 0
    assert "packed" in line(capsys, *_grow(packed, out))
    assert not out.exists()
