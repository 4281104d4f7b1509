"""``wmrt quantize`` on a tiny checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.cli.calls import line, run
from tests.runtime.models import states, tiny
from wmrt.cli.main import main
from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
from wmrt.runtime import WorldModel


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
        assert row["sqnr_db"] == pytest.approx(-20 * math.log10(row["relative_error"]))
        assert row["bytes_before"] == 2 * weight.numel()
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


def test_blocks_that_underflow_are_counted(tmp_path: Path, seed: int) -> None:
    checkpoint = tiny(seed)
    name = "blocks.1.out.weight"
    weight = checkpoint.tensors[name].clone()
    weight[3, 16:48] *= 2.0**-30  # two blocks far below the tensor's largest weight
    weight[5, :16] = 0.0  # one that is zero already
    checkpoint.tensors[name] = weight
    save_checkpoint(tmp_path / "model", checkpoint, card="x")
    path = str(tmp_path / "model")
    out = tmp_path / "packed"
    document = run(tmp_path / "q.json", "quantize", path, "--recipe", "nvfp4", "--out", str(out))
    zeroed = {row["layer"]: row["zeroed_blocks"] for row in document["results"]["layers"]}
    assert zeroed.pop("blocks.1.out") == 2 and not any(zeroed.values())
    assert document["results"]["zeroed_blocks"] == 2
    assert "| 2 |" in (out / "README.md").read_text()


def test_a_weight_of_zeros_has_no_error_to_measure(tmp_path: Path, seed: int) -> None:
    checkpoint = tiny(seed)
    checkpoint.tensors["blocks.0.out.weight"].zero_()
    save_checkpoint(tmp_path / "model", checkpoint, card="x")
    path, out = str(tmp_path / "model"), str(tmp_path / "packed")
    document = run(tmp_path / "q.json", "quantize", path, "--recipe", "w4a8", "--out", out)
    (row,) = [r for r in document["results"]["layers"] if r["layer"] == "blocks.0.out"]
    assert row["sqnr_db"] is row["relative_error"] is None and row["zeroed_blocks"] == 0


def test_no_path_of_this_machine_is_written(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    assert main(["quantize", str(folder), "--recipe", "nvfp4", "--out", str(out)]) == 0
    assert load_checkpoint(out).provenance["packed_from"]["model"] == "model"
    for file in ("README.md", "config.json"):
        assert str(tmp_path) not in (out / file).read_text()


def test_what_is_in_the_way_stays(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("years of work")
    arguments = ["quantize", str(folder), "--recipe", "nvfp4", "--out"]
    assert "not overwritten: thesis.tex" in line(capsys, *arguments, str(full))
    assert [p.name for p in full.iterdir()] == ["thesis.tex"]
    assert "is a file" in line(capsys, *arguments, str(full / "thesis.tex"))
    assert main([*arguments, str(tmp_path / "packed")]) == 0
    assert main([*arguments, str(tmp_path / "packed")]) == 0  # a checkpoint is replaced
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_a_damaged_checkpoint_is_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    out = tmp_path / "packed"
    assert "truncated" in line(capsys, "quantize", str(folder), "--recipe", "nvfp4", "--out",
                               str(out))  # fmt: skip
    assert not out.exists()


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
