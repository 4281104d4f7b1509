"""``wmrt quantize`` and ``wmrt inspect`` on a tiny checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.models import states, tiny
from wmrt.cli.main import main
from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
from wmrt.runtime import WorldModel


@pytest.fixture
def folder(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    save_checkpoint(tmp_path / "model", tiny(seed), card="# the original")
    return tmp_path / "model"


def line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a refused request."""
    capsys.readouterr()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Traceback" not in error
    return error


def run(json_path: Path, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json", str(json_path)]) == 0
    document: dict[str, Any] = json.loads(json_path.read_text())
    return document


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "w4a8"])
def test_the_packed_checkpoint_acts_as_the_original_under_that_recipe(
    recipe: str, folder: Path, tmp_path: Path, seed: int
) -> None:
    out = tmp_path / "packed"
    document = run(
        tmp_path / "q.json", "quantize", str(folder), "--recipe", recipe, "--out", str(out)
    )
    stored = WorldModel.from_pretrained(out)
    fresh = WorldModel.from_pretrained(folder, recipe=recipe)
    assert stored.recipe == fresh.recipe
    for state in states(stored.schema, 20, seed):
        a, b = stored.step(state), fresh.step(state)
        assert (a.chunk == b.chunk).all()
    assert document["identity"]["recipe"] == recipe
    assert document["identity"]["model_sha256"] == load_checkpoint(out).weights_sha256
    held = document["results"]["bytes"]
    assert held["after"] < held["before"]


def test_the_errors_it_reports_are_those_of_the_weights(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    document = run(
        tmp_path / "q.json", "quantize", str(folder), "--recipe", "nvfp4", "--out", str(out)
    )
    source = load_checkpoint(folder)
    network = WorldModel.from_pretrained(out).network
    packed = [row for row in document["results"]["layers"] if row["relative_error"] is not None]
    assert packed
    for row in packed:
        weight = source.tensors[f"{row['layer']}.weight"].float()
        restored = network.get_submodule(row["layer"]).quantized().dequantize()  # type: ignore[operator]
        expected = torch.linalg.norm(restored - weight) / torch.linalg.norm(weight)
        # Two ways to sum n float32 squares differ by about n ulp at worst; n is below 2**16.
        assert row["relative_error"] == pytest.approx(float(expected), rel=2.0**-7)
        assert 0 < row["relative_error"] < 0.25
    kept = [row for row in document["results"]["layers"] if row["relative_error"] is None]
    assert {row["form"] for row in kept} == {"bf16"}


def test_the_card_says_what_it_was_packed_from(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    assert main(["quantize", str(folder), "--recipe", "mxfp4", "--out", str(out)]) == 0
    text = (out / "README.md").read_text()
    source = load_checkpoint(folder)
    assert source.weights_sha256 is not None
    assert "packed as mxfp4" in text and source.weights_sha256 in text and "# the original" in text
    assert load_checkpoint(out).provenance["packed_from"]["weights_sha256"] in text


def test_refusals(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, path = str(tmp_path / "packed"), str(folder)
    assert "bogus" in line(capsys, "quantize", path, "--recipe", "bogus", "--out", out)
    assert "packs nothing" in line(capsys, "quantize", path, "--recipe", "bf16", "--out", out)
    assert "itself" in line(capsys, "quantize", path, "--recipe", "nvfp4", "--out", path)
    assert "no checkpoint" in line(capsys, "quantize", "nowhere", "--recipe", "nvfp4", "--out", out)
    assert not Path(out).exists()
    assert main(["quantize", path, "--recipe", "nvfp4", "--out", out]) == 0
    again = line(capsys, "quantize", out, "--recipe", "nvfp4", "--out", str(tmp_path / "twice"))
    assert "packed already" in again


def test_inspect_tells_what_is_stored(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run(tmp_path / "i.json", "inspect", str(folder), "--verify")
    checkpoint = load_checkpoint(folder)
    results = document["results"]
    assert results["weights_sha256"] == checkpoint.weights_sha256
    assert results["recipe"] is None
    assert results["model"] == checkpoint.model
    assert [row["field"] for row in results["fields"]] == [
        c.name for c in checkpoint.schema.columns
    ]
    assert [row["tensor"] for row in results["tensors"]] == list(checkpoint.tensors)
    assert results["bytes"] == sum(row["bytes"] for row in results["tensors"])
    said = capsys.readouterr().out
    assert "float (any recipe runs)" in said
    assert next(iter(checkpoint.tensors)) not in said
    assert main(["inspect", str(folder), "--tensors"]) == 0
    assert next(iter(checkpoint.tensors))[:12] in capsys.readouterr().out


def test_inspect_of_a_packed_checkpoint_names_its_recipe(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "packed"
    assert main(["quantize", str(folder), "--recipe", "w4a8", "--out", str(out)]) == 0
    document = run(tmp_path / "i.json", "inspect", str(out))
    assert document["identity"]["recipe"] == document["results"]["recipe"]["name"] == "w4a8"
    assert "packed as w4a8" in capsys.readouterr().out


def test_inspect_refuses_a_damaged_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert "truncated" in line(capsys, "inspect", str(folder))
    assert "no checkpoint" in line(capsys, "inspect", "nowhere")
