"""``wmrt inspect`` on a tiny checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calls import line, run
from wmrt.cli.main import main
from wmrt.model.checkpoint import load_checkpoint
from wmrt.runtime import WorldModel


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
    assert results["ledger"]["excluded"] == {"bytes": results["bytes"], "how": "measured"}
    assert results["ledger"]["payload"]["bytes"] == 0
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
    ledger, held = document["results"]["ledger"], WorldModel.from_pretrained(out).report().bytes
    figures = {key: figure["bytes"] for key, figure in ledger.items()}
    assert figures["weights"] == document["results"]["bytes"]
    assert figures["payload"] + figures["padding"] == held["packed_codes"]
    assert figures["scales"] == held["scales"] and figures["padding"] > 0  # K 64 in blocks of 128
    assert figures["ring"] == held["ring"] and ledger["ring"]["how"] == "estimated"
    assert ledger["workspace"] == {"bytes": None, "how": "missing"}
    assert "packed as w4a8" in capsys.readouterr().out


def test_inspect_refuses_a_damaged_checkpoint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert "truncated" in line(capsys, "inspect", str(folder))
    assert "no checkpoint" in line(capsys, "inspect", "nowhere")
