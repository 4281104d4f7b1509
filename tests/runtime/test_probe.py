"""The probe: a process that runs a stored model, and the watching that it does there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.models import states, tiny
from wmrt.core.errors import UsageError
from wmrt.model.checkpoint import save_checkpoint
from wmrt.runtime import WorldModel
from wmrt.runtime.build import linears
from wmrt.runtime.probe import ProbeError, float_copies, main, probe, random_states, watch


@pytest.fixture
def folder(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = WorldModel.from_checkpoint(tiny(seed), recipe="nvfp4")
    model.save_pretrained(tmp_path / "model", card="# packed")
    return tmp_path / "model"


def test_a_stored_model_tells_what_it_runs_and_keeps(folder: Path) -> None:
    found = probe(folder)
    report = WorldModel.from_pretrained(folder).report()
    assert found["report"]["layers"] == report.layers and found["report"]["bytes"] == report.bytes
    for name, call in found["calls"].items():
        assert call["kernels"] == [report.layers[name]]
        assert call["calls"] > 0 and call["deviation"] < 1e-5 and call["output"] == "float32"
    assert found["float_copies"] == []
    memory = found["resident"]
    if sys.platform == "linux":
        assert 0 < memory["workspace"]["bytes"] <= memory["resident"]["bytes"] < 100e6
        # Stored canonical: converted, and the file given up; without a native library it stays.
        converted = report.layout["converted"]
        assert (memory["mapped_weights"]["bytes"] == 0) == converted
    else:
        assert memory["resident"] == {"bytes": None, "how": "missing"}


def test_errors_come_back_as_they_were(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wmrt.runtime.probe.STEPS", 1)
    answer = main(str(folder), "mxfp4", "cpu")
    assert answer["error"] == "UsageError" and "packed as nvfp4" in answer["message"]
    said = subprocess.CompletedProcess([], 0, stdout=json.dumps(answer), stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: said)
    with pytest.raises(UsageError, match="packed as nvfp4"):
        probe(folder, recipe="mxfp4")


def test_a_process_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ProbeError, match="ended with status 1: it said nothing"):
        probe(tmp_path)


def test_random_states_are_the_schemas(seed: int) -> None:
    schema = tiny(seed).schema
    drawn = random_states(schema, 20)
    assert drawn == random_states(schema, 20) and len(drawn) == 20
    assert not any(schema.encode(state, strict=False).issues for state in drawn if _known(state))


def _known(state: dict[str, Any]) -> bool:
    return all(value is not None for value in state.values())


def _skewed(function: Callable[[Tensor, Any], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    return lambda x, weight: function(x, weight) * 1.01


def test_another_computation_under_the_same_name_is_seen(seed: int) -> None:
    model = WorldModel.from_checkpoint(tiny(seed), recipe="mxfp4", executor="eager")
    module = linears(model.network)["blocks.1.down"]
    op = module._op
    assert op is not None
    module._op = replace(op, function=_skewed(op.function))
    with watch(model) as calls:
        model.step(states(model.schema, 1, seed)[0])
    assert calls["blocks.1.down"]["deviation"] == pytest.approx(0.01, rel=1e-3)
    assert calls["blocks.0.down"]["deviation"] == 0.0


def test_a_float_copy_is_found(seed: int) -> None:
    model = WorldModel.from_checkpoint(tiny(seed), recipe="nvfp4")
    module = linears(model.network)["blocks.0.gate_up"]
    shape = [module.out_features, module.in_features]
    before = [copy for copy in float_copies(model) if copy["shape"] == shape]
    kept = module.quantized().dequantize().to(torch.bfloat16)
    after = [copy for copy in float_copies(model) if copy["shape"] == shape]
    assert len(after) == len(before) + 1
    assert {"shape": list(kept.shape), "dtype": "bfloat16"} in after


def test_a_float_checkpoint_runs_under_a_recipe(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wmrt.runtime.probe.STEPS", 1)
    save_checkpoint(tmp_path / "float", tiny(seed), card="# float")
    found = main(str(tmp_path / "float"), "w4a8", "cpu")
    assert found["report"]["resolved"]["recipe"] == "w4a8" and found["resident"]["steps"] == 1
