"""``wmrt quantize --layout`` and what the other verbs say of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calls import line, run
from tests.runtime.models import drive, same, states
from wmrt.model.checkpoint import load_checkpoint
from wmrt.runtime import WorldModel


@pytest.mark.parametrize(
    ("layout", "recipe"),
    [("cpu_interleaved", "nvfp4"), ("gpu_gemv", "w4a8"), ("cublas_128x4", "mxfp4")],
)
def test_the_layout_asked_for_is_stored_and_shown(
    layout: str,
    recipe: str,
    folder: Path,
    tmp_path: Path,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "packed"
    arguments = ("quantize", str(folder), "--recipe", recipe, "--out", str(out))
    document = run(tmp_path / "q.json", *arguments, "--layout", layout)
    assert document["results"]["layout"] == layout
    contract = load_checkpoint(out).quantization
    assert contract is not None and set(contract) == {"recipe", "layout"}
    assert contract["layout"] == layout
    model, fresh = (
        WorldModel.from_pretrained(out),
        WorldModel.from_pretrained(folder, recipe=recipe),
    )
    stream = states(model.schema, 10, seed)
    assert all(same(a, b) for a, b in zip(drive(model, stream), drive(fresh, stream), strict=True))
    capsys.readouterr()
    seen = run(tmp_path / "i.json", "inspect", str(out))["results"]
    assert seen["layout"] == layout and seen["recipe"]["name"] == recipe
    assert f"packed as {recipe}, layout {layout}" in capsys.readouterr().out
    assert seen["ledger"]["weights"]["bytes"] == seen["bytes"]
    assert seen["ledger"]["padding"]["bytes"] > 0  # K = 64 and 128 are less than a step of 256


def test_canonical_is_the_default(folder: Path, tmp_path: Path) -> None:
    plain, named = tmp_path / "plain", tmp_path / "named"
    arguments = ("quantize", str(folder), "--recipe", "nvfp4", "--out")
    document = run(tmp_path / "q.json", *arguments, str(plain))
    assert document["results"]["layout"] == "canonical"
    run(tmp_path / "q.json", *arguments, str(named), "--layout", "canonical")
    weights = [(folder / "model.safetensors").read_bytes() for folder in (plain, named)]
    assert weights[0] == weights[1]


def test_what_cannot_be_is_one_line_and_writes_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "packed"
    arguments = ("quantize", str(folder), "--out", str(out), "--recipe")
    for recipe, layout, said in (
        ("nvfp4", "marlin", "unknown layout 'marlin'; layouts are canonical, gpu_gemv"),
        ("w4a8", "cublas_128x4", "cublas_128x4 takes byte scales"),
        ("fp8", "cpu_interleaved", "cpu_interleaved takes 4-bit codes"),
    ):
        assert said in line(capsys, *arguments, recipe, "--layout", layout)
    assert not [p.name for p in tmp_path.iterdir() if "packed" in p.name]
