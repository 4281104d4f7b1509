from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from wmrt.core.errors import CheckpointError, UsageError
from wmrt.model.checkpoint import load_checkpoint
from wmrt.model.config import preset
from wmrt.model.locate import WEIGHTS_FILE
from wmrt.model.random_init import is_random, random_checkpoint
from wmrt.quant import get_recipe, quantize
from wmrt.quant.layouts import from_layout
from wmrt.runtime.bench import weights
from wmrt.runtime.bench.weights import default_layout, preset_checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "wmrt/bench"


def test_packed_weights_are_those_of_init_rounded_to_nearest(cache: Path) -> None:
    made = preset_checkpoint("tiny", "nvfp4")
    assert is_random(made) and made.quantization is not None
    assert made.quantization["layout"] == "cpu_interleaved"
    plain = random_checkpoint("tiny", preset("tiny"), load_checkpoint("highway"), 0)
    name = "blocks.1.gate_up"
    weight = plain.tensors[f"{name}.weight"]
    own = {k.rpartition(".")[2]: t for k, t in made.tensors.items() if k.startswith(f"{name}.")}
    shape = (weight.shape[0], weight.shape[1])
    held = from_layout("nvfp4", shape, "cpu_interleaved", own)
    assert torch.equal(held.codes, quantize(weight.float(), "nvfp4").codes)
    assert made.provenance["parameters"] == plain.provenance["parameters"]
    assert torch.equal(made.tensors["fusion.gate.weight"], plain.tensors["fusion.gate.weight"])
    kept = made.tensors["action_head.out.weight"]  # the action head stays in bf16
    assert kept.dtype == torch.bfloat16


def test_they_are_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = preset_checkpoint("tiny", "mxfp4")
    (folder,) = cache.iterdir()
    assert folder == first.path and folder.name.startswith("tiny-mxfp4-")
    assert "Random weights" in (folder / "README.md").read_text()
    monkeypatch.setattr(weights, "_make", None)  # would fail if called
    assert preset_checkpoint("tiny", "mxfp4").weights_sha256 == first.weights_sha256


def test_another_request_is_another_folder(cache: Path) -> None:
    folders = {
        preset_checkpoint("tiny", "nvfp4").path,
        preset_checkpoint("tiny", "nvfp4", seed=1).path,
        preset_checkpoint("tiny", "nvfp4", layout="canonical").path,
        preset_checkpoint("tiny", "bf16").path,
    }
    assert len(folders) == len(list(cache.iterdir())) == 4


def test_kept_weights_that_are_cut_off_say_so(cache: Path) -> None:
    made = preset_checkpoint("tiny", "nvfp4")
    assert made.path is not None
    file = made.path / WEIGHTS_FILE
    size = file.stat().st_size
    copy = made.path.with_name("copy")
    shutil.copy(file, copy)  # `made` still maps the file itself
    file.unlink()
    file.write_bytes(copy.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=f"truncated: {size - 100} bytes.*remove {made.path}"):
        preset_checkpoint("tiny", "nvfp4")


def test_formats_without_the_layout_are_stored_canonically() -> None:
    assert default_layout(get_recipe("bf16")) == "canonical"
    assert default_layout(get_recipe("int8")) == "canonical"
    assert {default_layout(get_recipe(r)) for r in ("nvfp4", "mxfp4", "w4a8")} == {weights.LAYOUT}


def test_what_cannot_be_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="preset '2b' is unknown"):
        preset_checkpoint("2b", "nvfp4")
    with pytest.raises(UsageError, match="unknown recipe"):
        preset_checkpoint("tiny", "nvfp5")
    usage = shutil.disk_usage(cache.parent.parent)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UsageError, match=r"0\.0 GB are free"):
        preset_checkpoint("tiny", "nvfp4")
    assert list(cache.iterdir()) == []
