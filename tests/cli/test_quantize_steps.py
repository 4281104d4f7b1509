"""``wmrt quantize`` with steps that read recorded episodes, and under a budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.calls import line, run
from tests.runtime.models import states, tiny
from tests.train.recordings import recording
from wmrt.cli.main import main
from wmrt.core.seeds import HELD_OUT
from wmrt.model.checkpoint import load_checkpoint, save_checkpoint
from wmrt.quant import RECIPES, Recipe
from wmrt.quant.best import BEST
from wmrt.quant.steps import Gptq, Hadamard
from wmrt.runtime import WorldModel


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return recording(tmp_path / "drives")


def quantize(folder: Path, tmp_path: Path, *more: str, recipe: str = "nvfp4") -> dict[str, Any]:
    out = str(tmp_path / "packed")
    return run(
        tmp_path / "q.json", "quantize", str(folder), "--recipe", recipe, "--out", out, *more
    )


@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "w4a8"])
def test_the_best_steps_leave_less_error_than_nearest(
    recipe: str, folder: Path, data: Path, tmp_path: Path, seed: int
) -> None:
    document = quantize(folder, tmp_path, "--steps", "best", "--data", str(data), recipe=recipe)
    results = document["results"]
    assert 0 < results["output_error"] < results["nearest_error"]
    packed = [row for row in results["layers"] if row["form"] != "bf16"]
    assert len(packed) == 8 and all(row["sqnr_db"] > 5 for row in packed)
    resolved = document["identity"]["resolved"]
    steps = [step.to_json() for step in BEST[RECIPES[recipe].weight_format]]
    assert resolved["steps"] == steps and resolved["name"] == recipe
    model = WorldModel.from_pretrained(tmp_path / "packed")
    assert model.recipe.weight_format == RECIPES[recipe].weight_format
    assert all(model.step(state).chunk.shape == (4, 2) for state in states(model.schema, 20, seed))


def test_card_and_provenance_tell_steps_data_and_time(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    document = quantize(
        folder, tmp_path, "--steps", "hadamard,gptq", "--data", str(data), "--windows", "12",
        "--seed", "3",
    )  # fmt: skip
    origin = load_checkpoint(tmp_path / "packed").provenance["packed_from"]
    assert [step["kind"] for step in origin["steps"]] == ["hadamard", "gptq"]
    used = origin["data"]
    assert used == document["results"]["data"] and used["folders"] == ["drives"]
    assert (used["windows"], used["seed"], used["steps"]) == (12, 3, 16)
    assert origin["error"] == document["results"]["error"] and origin["seconds"] > 0
    card = (tmp_path / "packed" / "README.md").read_text()
    for part in ("`hadamard,gptq`", "12 windows of 16 steps", used["sha256"][:16], "by rtn"):
        assert part in card
    for file in ("README.md", "config.json"):
        assert str(tmp_path) not in (tmp_path / "packed" / file).read_text()


def test_the_same_request_gives_the_same_bytes(folder: Path, data: Path, tmp_path: Path) -> None:
    more = ("--steps", "hadamard,awq,clip,gptq", "--data", str(data))
    first = quantize(folder, tmp_path, *more)["identity"]["model_sha256"]
    assert quantize(folder, tmp_path, *more)["identity"]["model_sha256"] == first
    other = quantize(folder, tmp_path, *more, "--seed", "1")
    assert other["identity"]["model_sha256"] != first


def test_rtn_is_measured_where_there_is_data(folder: Path, data: Path, tmp_path: Path) -> None:
    bare = quantize(folder, tmp_path)
    assert bare["results"]["output_error"] is bare["results"]["error"] is None
    measured = quantize(folder, tmp_path, "--data", str(data))
    assert measured["identity"]["model_sha256"] == bare["identity"]["model_sha256"]
    results = measured["results"]
    assert results["output_error"] == results["nearest_error"] > 0
    assert results["error"]["hidden"] > 0 and results["error"]["action"] > 0


def test_a_budget_leaves_the_worst_layers_in_bf16(folder: Path, data: Path, tmp_path: Path) -> None:
    plain = quantize(folder, tmp_path, "--data", str(data))
    document = quantize(folder, tmp_path, "--data", str(data), "--budget", "1.15x")
    found = document["results"]["exclusion"]
    size = document["results"]["bytes"]["after"]
    assert size <= found["budget"] == int(1.15 * plain["results"]["bytes"]["after"])
    assert {row["layer"] for row in found["costs"] if row["bf16"]} == set(found["chosen"])
    assert document["identity"]["resolved"]["exclude"] == list(found["chosen"])
    kept = {r["layer"] for r in document["results"]["layers"] if r["form"] == "bf16"}
    assert kept - set(found["chosen"]) == {"action_head.hidden", "action_head.out"}
    if found["chosen"]:
        assert found["with_"]["hidden"] < found["without"]["hidden"]
        assert size > plain["results"]["bytes"]["after"]
    assert "Left in bf16 within" in (tmp_path / "packed" / "README.md").read_text()
    WorldModel.from_pretrained(tmp_path / "packed", recipe="nvfp4")


def test_steps_from_a_file(folder: Path, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    more = ("--steps", str(file), "--data", str(data))
    file.write_text(json.dumps([Hadamard(4).to_json(), Gptq(0.05).to_json()]))
    resolved = quantize(folder, tmp_path, *more)["identity"]["resolved"]
    assert [s["kind"] for s in resolved["steps"]] == ["hadamard", "gptq"]
    assert resolved["steps"][0]["seed"] == 4 and resolved["steps"][1]["damp"] == 0.05
    mine = Recipe("mine", "nvfp4", "int8-g32", (Gptq(),), ("*.down",))
    file.write_text(json.dumps(mine.to_json()))
    resolved = quantize(folder, tmp_path, *more)["identity"]["resolved"]
    assert resolved["exclude"] == ["*.down"] and resolved["name"] == "nvfp4"


def test_refusals(
    folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.json"

    def said(*more: str, recipe: str = "nvfp4") -> str:
        out = str(tmp_path / "packed")
        text = line(capsys, "quantize", str(folder), "--recipe", recipe, "--out", out, *more)
        assert not (tmp_path / "packed").exists()
        return text

    assert "gptq: recorded episodes are needed" in said("--steps", "gptq")
    assert "wmrt collect" in said("--steps", "clip")
    assert "--budget: recorded episodes are needed" in said("--budget", "2x")
    assert "unknown steps 'magic'" in said("--steps", "magic")
    assert "in this order" in said("--steps", "gptq,clip", "--data", str(data))
    assert "four-over-six is for nvfp4" in said("--steps", "four-over-six", recipe="mxfp4")
    assert "choose 4-bit codes" in said("--steps", "gptq", "--data", str(data), recipe="fp8")
    assert "no steps were measured best for fp8" in said("--steps", "best", recipe="fp8")
    assert "wmrt collect" in said("--steps", "gptq", "--data", str(tmp_path / "nowhere"))
    assert "1.1x, or bytes" in said("--budget", "much", "--data", str(data))
    assert "packed in full it takes" in said("--budget", "10", "--data", str(data))
    file.write_text("{")
    assert "not readable as JSON" in said("--steps", str(file))
    file.write_text('[{"kind": "magic"}]')
    assert "not a step" in said("--steps", str(file))
    file.write_text(json.dumps(RECIPES["mxfp4"].to_json()))
    assert "is for mxfp4 weights" in said("--steps", str(file))
    held = recording(tmp_path / "held", first=HELD_OUT.start)
    assert "held out for evaluation" in said("--steps", "gptq", "--data", str(held))


def test_nothing_is_left_of_a_run_that_breaks(
    folder: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main(["inspect", str(folder)])  # which remembers that its hash was verified
    before = sorted(p.name for p in tmp_path.iterdir())
    out = str(tmp_path / "packed")
    request = ["quantize", str(folder), "--recipe", "nvfp4", "--steps", "gptq", "--data",
               str(data), "--out", out]  # fmt: skip

    def interrupt(*arguments: object) -> None:
        raise click.Abort

    with monkeypatch.context() as patch:
        patch.setattr("wmrt.quant.rounding.gptq", interrupt)
        assert main(request) == 130
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    with monkeypatch.context() as patch:
        patch.setattr("wmrt.model.checkpoint._swap_in", interrupt)
        assert main(request) == 130
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_names_the_tensor(
    value: float, data: Path, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tiny(seed)
    checkpoint.tensors["blocks.1.gate_up.weight"][3, 5] = value
    save_checkpoint(tmp_path / "model", checkpoint, card="x")
    out = tmp_path / "packed"
    for steps in ("rtn", "gptq"):
        text = line(capsys, "quantize", str(tmp_path / "model"), "--recipe", "nvfp4", "--steps",
                    steps, "--data", str(data), "--out", str(out))  # fmt: skip
        assert "blocks.1.gate_up.weight holds NaN or infinity" in text
    assert not out.exists()
