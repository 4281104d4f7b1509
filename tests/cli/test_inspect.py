"""``wmrt inspect`` on a tiny checkpoint."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import line, run
from tests.runtime.models import tiny
from wmrt.cli.main import main
from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
from wmrt.quant.ledger import Figure
from wmrt.runtime import WorldModel


def test_inspect_tells_what_is_stored(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
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
    assert results["ledger"]["excluded"] == {"bytes": results["bytes"], "how": "measured"}
    assert results["ledger"]["payload"]["bytes"] == 0
    assert results["resident"] is None and results["would_take"] is None
    said = capsys.readouterr().out
    assert "float (any recipe runs)" in said
    assert "blocks.0.qkv.weight" not in said
    assert main(["inspect", str(folder), "--tensors"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in checkpoint.tensors)


def test_inspect_of_a_packed_checkpoint_names_its_recipe(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "packed"
    assert main(["quantize", str(folder), "--recipe", "w4a8", "--out", str(out)]) == 0
    document = run(tmp_path / "i.json", "inspect", str(out))
    assert document["identity"]["recipe"] == document["results"]["recipe"]["name"] == "w4a8"
    ledger, held = document["results"]["ledger"], WorldModel.from_pretrained(out).report().bytes
    figures = {key: figure["bytes"] for key, figure in ledger.items()}
    assert figures["held"] + figures["ring"] == sum(held.values()) - held["workspace"]
    assert figures["weights"] == document["results"]["bytes"]
    assert figures["payload"] + figures["padding"] == held["packed_codes"]
    assert figures["scales"] == held["scales"] and figures["padding"] > 0  # K 64 in blocks of 128
    assert figures["ring"] == held["ring"] and ledger["ring"]["how"] == "estimated"
    assert ledger["workspace"] == {"bytes": None, "how": "missing"}
    assert "packed as w4a8" in capsys.readouterr().out


@pytest.mark.parametrize("recipe", ["bf16", "nvfp4", "mxfp4", "w4a8"])
def test_the_file_is_what_configuration_and_recipe_say(
    recipe: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = folder
    if recipe != "bf16":
        model = tmp_path / "packed"
        assert main(["quantize", str(folder), "--recipe", recipe, "--out", str(model)]) == 0
    would = run(tmp_path / "w.json", "inspect", str(folder), "--recipe", recipe)["results"]
    results = run(tmp_path / "i.json", "inspect", str(model))["results"]
    size = (model / "model.safetensors").stat().st_size
    file = results["file"]
    assert (file["bytes"], file["difference"]) == (size, 0)
    assert file["header"] == size - results["bytes"]
    assert results["estimate"]["file"] == {"bytes": size, "how": "estimated"}
    assert would["would_take"]["file"] == results["estimate"]["file"]
    assert results["ledger"]["weights"]["how"] == "measured"
    assert f"a step reads {results['estimate']['step']['bytes']:,} bytes" in " ".join(
        capsys.readouterr().out.split()
    )


def test_every_tensor_has_its_row(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "packed"
    assert main(["quantize", str(folder), "--recipe", "w4a8", "--out", str(out)]) == 0
    results = run(tmp_path / "i.json", "inspect", str(out), "--tensors")["results"]
    rows = {row["name"]: row for row in results["entries"]}
    down = rows["blocks.0.down"]  # [64, 128] in groups of 128
    assert down["format"] == "int4-g128" and down["payload"]["bytes"] == 64 * 64
    assert down["scales"]["bytes"] == 64 * 2 and down["padding"]["bytes"] == 0
    assert rows["blocks.0.qkv"]["padding"]["bytes"] == rows["blocks.0.qkv"]["payload"]["bytes"]
    assert rows["fusion.memory.table"]["excluded"]["how"] == "measured"
    columns = ("payload", "scales", "padding", "excluded")
    total = sum(row[column]["bytes"] for row in rows.values() for column in columns)
    assert total == results["bytes"]
    said = capsys.readouterr().out
    assert all(column in said for column in (*columns, "held", "read"))


def test_resident_memory_stands_beside_the_ledger(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("inspect", str(folder), "--recipe", "nvfp4", "--resident")
    found = run(tmp_path / "i.json", *arguments)["results"]["resident"]
    said = " ".join(capsys.readouterr().out.split())
    if sys.platform != "linux":
        assert found["ratio"] is None and "missing" in said
        return
    assert found["resident"]["how"] == "measured" and found["ledger"]["how"] == "estimated"
    assert found["ratio"] == found["resident"]["bytes"] / found["ledger"]["bytes"]
    assert f"resident {found['resident']['bytes']:,} bytes after 100 steps" in said


def test_an_estimate_that_is_off_the_file_falls_short(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from wmrt.runtime import capacity

    size = (folder / "model.safetensors").stat().st_size
    honest = capacity.estimate
    for off, status in ((size // 101, 0), (-(size // 99), 1)):
        extra = Figure(off, "estimated")

        def wrong(*given: Any, extra: Figure = extra) -> Any:
            ledger = honest(*given)
            return replace(ledger, overhead=ledger.overhead + extra)

        monkeypatch.setattr(capacity, "estimate", wrong)
        assert main(["inspect", str(folder)]) == status
    assert "falls short: the ledger is -1.0" in capsys.readouterr().err


def test_what_a_file_says_is_printed_and_written_safely(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Provenance is anybody's: an escape sequence must not reach the terminal, nor NaN the JSON."""
    said = {"note": "\x1b]0;owned\x07\x1b[31mred\u202e", "loss": 1.5, "list": ["\x1b[2J"]}
    save_checkpoint(tmp_path / "m", replace(tiny(seed), provenance=said), card="# said")
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace("1.5", "NaN"))
    results = run(tmp_path / "i.json", "inspect", str(tmp_path / "m"))["results"]
    assert results["provenance"] == {**said, "loss": None}
    shown = capsys.readouterr().out
    assert "\\x1b]0;owned\\x07" in shown.replace("\n", "")
    assert not any(c in shown for c in "\x1b\x07\u202e")


def test_inspect_refuses_a_damaged_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert "truncated" in line(capsys, "inspect", str(folder))
    assert "no checkpoint" in line(capsys, "inspect", "nowhere")
