"""The command around the lint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tools import graph_lint
from wmrt.core.errors import UsageError


def run(*options: str) -> Any:
    return CliRunner().invoke(graph_lint.main, options, env={"COLUMNS": "120"})


def test_a_preset_is_shown_and_written(tmp_path: Path) -> None:
    path = tmp_path / "lint.json"
    done = run("--preset", "tiny", "--recipe", "nvfp4", "--step", "eager", "--json", str(path))
    assert done.exit_code == 0, done.output
    assert "eager step of tiny, nvfp4, batch 1:" in done.output and "aten::mul" in done.output
    results = json.loads(path.read_text("utf-8"))["results"]
    assert results["capturable"] and not results["clean"]
    assert results["launches"] == sum(results["launches_by_operator"].values()) > 100
    assert results["launches_by_operator"]["wmrt::gemv_nvfp4"] == 8
    assert "torch" in results["known_to_allocate"]


def test_what_breaks_a_capture_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    from wmrt.model.network import Network

    right = Network.predict
    monkeypatch.setattr(
        Network, "predict", lambda self, x, a: (x.sum().item(), right(self, x, a))[1]
    )
    done = run("--preset", "tiny", "--recipe", "bf16", "--step", "eager")
    assert done.exit_code == 1
    assert "host synchronisation: aten::_local_scalar_dense waits for a value" in done.output
    assert "falls short: a capture of this step would fail" in done.output


@pytest.mark.parametrize("step", ["fused", "group"])
@pytest.mark.parametrize("recipe", ["nvfp4", "mxfp4", "w4a8"])
def test_the_fused_step_allocates_nothing(recipe: str, step: str, tmp_path: Path) -> None:
    path = tmp_path / "lint.json"
    given = ("--preset", "tiny", "--recipe", recipe, "--batch", "3", "--step", step)
    done = run(*given, "--json", str(path))
    assert done.exit_code == 0, done.output
    results = json.loads(path.read_text("utf-8"))["results"]
    assert results["capturable"] and results["clean"] and not results["faults"]
    layers, others = 2, 11
    assert results["launches"] == 5 * layers + others


def test_a_recipe_without_a_fused_step_is_told() -> None:
    done = run("--preset", "tiny", "--recipe", "bf16")
    assert "blocks.0.qkv is bf16" in str(done.exception) and "executor=eager" in str(done.exception)


def test_unknown_names_are_usage_errors() -> None:
    assert isinstance(run("--preset", "huge").exception, UsageError)
    assert run("--batch", "17").exit_code == 2
