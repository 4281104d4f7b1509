"""Checkpoints that store an execution layout: loaded, reported, saved again, refused when wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.models import drive, eager, eager_from, same, states, tiny
from wmrt.core.errors import CheckpointError, QuantizationError, UsageError, WmrtError
from wmrt.kernels import linear as pick
from wmrt.kernels import registry
from wmrt.model.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from wmrt.quant import get_recipe
from wmrt.quant.layouts import LaidOut, from_layout, stored
from wmrt.runtime.build import build_network, linears, to_checkpoint

CPU = torch.device("cpu")
CASES = [("cpu_interleaved", "nvfp4"), ("cpu_interleaved", "w4a8-zp"), ("gpu_gemv", "mxfp4"),
         ("gpu_gemv", "w4a8"), ("cublas_128x4", "nvfp4-a16")]  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def packed(seed: int, recipe: str, layout: str | None) -> Checkpoint:
    built = build_network(tiny(seed), recipe, CPU)
    return to_checkpoint(built.network, built.recipe, {}, layout)


def refused(checkpoint: Checkpoint) -> str:
    with pytest.raises(WmrtError) as caught:
        eager(checkpoint)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("layout", "recipe"), CASES)
def test_a_stored_layout_acts_as_the_canonical_one_and_is_saved_again(
    layout: str, recipe: str, tmp_path: Path, seed: int
) -> None:
    save_checkpoint(tmp_path / "c", packed(seed, recipe, layout), card="x")
    loaded = load_checkpoint(tmp_path / "c")
    assert loaded.quantization is not None and loaded.quantization["layout"] == layout
    model = eager_from(tmp_path / "c")
    plain = eager(packed(seed, recipe, None))
    stream = states(model.schema, 12, seed)
    for a, b in zip(drive(model, stream), drive(plain, stream), strict=True):
        assert same(a, b)
    report = model.report()
    assert report.layout == {"stored": layout, "running": "canonical", "converted": True}
    assert report.to_json()["layout"] == report.layout
    assert report.to_json()["resolved"]["layout"] == "canonical"
    assert report.bytes == plain.report().bytes  # what is held is canonical, nothing beside it
    assert plain.report().layout == {
        "stored": "canonical",
        "running": "canonical",
        "converted": False,
    }
    model.save_pretrained(tmp_path / "again", card="x")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()


@pytest.mark.parametrize(("layout", "recipe"), CASES)
def test_tensors_are_those_the_layout_names(layout: str, recipe: str, seed: int) -> None:
    checkpoint, source = packed(seed, recipe, layout), tiny(seed)
    network = build_network(checkpoint, None, CPU).network
    for name, module in linears(network).items():
        held = {k: t for k, t in checkpoint.tensors.items() if k.startswith(f"{name}.")}
        if module.weight is not None:
            assert list(held) == [f"{name}.weight"]
            continue
        rows, columns = source.tensors[f"{name}.weight"].shape
        specs = stored(layout, get_recipe(recipe).weight_format, (rows, columns))
        assert {k: (tuple(t.shape), t.dtype) for k, t in held.items()} == {
            f"{name}.{key}": spec for key, spec in specs.items()
        }


def test_float_and_bf16_have_no_layout(seed: int) -> None:
    source = tiny(seed)
    report = eager(source).report()
    assert report.layout == {"stored": None, "running": None, "converted": False}
    report = eager(source, recipe="nvfp4").report()
    assert report.layout == {"stored": None, "running": "canonical", "converted": False}
    network = build_network(source, "bf16", CPU).network
    for recipe in (None, get_recipe("bf16")):
        with pytest.raises(UsageError, match="packs nothing"):
            to_checkpoint(network, recipe, {}, "gpu_gemv")


@pytest.mark.parametrize("layout", ["cpu_interleaved", "gpu_gemv"])
def test_nothing_is_repacked_for_an_operator_that_reads_it(
    layout: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = pick("nvfp4", "int8-g32")
    native = replace(reference, layout=layout, function=lambda x, w: reference(x, _canonical(w)))
    key = ("nvfp4", "int8-g32", "reference")
    save_checkpoint(tmp_path / "c", packed(seed, "nvfp4", layout), card="x")
    plain = eager_from(tmp_path / "c")
    monkeypatch.setitem(registry._OPS, key, native)
    checkpoint = load_checkpoint(tmp_path / "c")
    model = eager(checkpoint)
    for name, module in linears(model.network).items():
        for part, tensor in module.named_buffers():
            assert tensor.data_ptr() == checkpoint.tensors[f"{name}.{part}"].data_ptr()
    report = model.report()
    assert report.layout == {"stored": layout, "running": layout, "converted": False}
    assert report.bytes["packed_codes"] == plain.report().bytes["packed_codes"]
    assert report.bytes["layout_padding"] > 0  # K = 64 and 128 are padded to 256
    kept = sum(m.packed_bytes() for m in linears(model.network).values())
    parts = ("packed_codes", "scales", "layout_padding", "bf16_linears")
    assert sum(report.bytes[part] for part in parts) == kept
    stream = states(model.schema, 5, seed)
    for a, b in zip(drive(model, stream), drive(plain, stream), strict=True):
        assert same(a, b)
    model.save_pretrained(tmp_path / "again", card="x")
    again, before = (tmp_path / n / "model.safetensors" for n in ("again", "c"))
    assert again.read_bytes() == before.read_bytes()


def _canonical(weight: Any) -> Any:
    assert isinstance(weight, LaidOut)
    return from_layout(weight.format, weight.shape, weight.layout, weight.tensors)


# ---- refusals ----


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"layout": "marlin"}, "unknown layout 'marlin'; layouts are canonical"),
        ({"layout": None}, "unknown layout"),
        ({"layout": ["gpu_gemv"]}, "unknown layout"),
        ({"layout": "cublas_128x4"}, "cublas_128x4 takes .*; int4-g128 is not"),
        ({"kernel": "x"}, r"unknown \['kernel'\]"),
    ],
)
def test_a_contract_that_cannot_be_read(change: dict[str, Any], match: str, seed: int) -> None:
    checkpoint = packed(seed, "w4a8", "gpu_gemv")
    changed = replace(checkpoint, quantization={**(checkpoint.quantization or {}), **change})
    with pytest.raises(CheckpointError, match=f"^checkpoint: quantization: .*{match}"):
        eager(changed)


@pytest.mark.parametrize("key", ["recipe", "layout"])
def test_both_keys_of_the_contract_are_required(key: str, seed: int) -> None:
    checkpoint = packed(seed, "nvfp4", None)
    held = {k: v for k, v in (checkpoint.quantization or {}).items() if k != key}
    text = refused(replace(checkpoint, quantization=held))
    assert f"quantization: missing ['{key}'], unknown []" in text


def test_another_layout_than_the_one_recorded(seed: int) -> None:
    names = ("canonical", "cpu_interleaved", "gpu_gemv", "cublas_128x4")
    for mine in names:
        checkpoint = packed(seed, "nvfp4", mine)
        for other in names:
            if other == mine:
                continue
            contract = {**(checkpoint.quantization or {}), "layout": other}
            text = refused(replace(checkpoint, quantization=contract))
            assert "missing tensors: blocks.0.down." in text and "unexpected tensors" in text


def damaged(checkpoint: Checkpoint, **tensors: Tensor) -> Checkpoint:
    """With some tensors of one layer replaced."""
    new = {f"blocks.1.down.{key}": t for key, t in tensors.items()}
    return replace(checkpoint, tensors={**checkpoint.tensors, **new})


def test_damaged_tensors_name_their_layer(seed: int) -> None:
    checkpoint = packed(seed, "nvfp4", "gpu_gemv")
    words, scales = (checkpoint.tensors[f"blocks.1.down.{k}"] for k in ("words", "lane_scales"))
    text = refused(damaged(checkpoint, words=scales, lane_scales=words))  # swapped
    assert "wrong shape: blocks.1.down.lane_scales is" in text and "wrong dtype" in text
    assert "wrong shape" in refused(damaged(checkpoint, words=words[:, :-1]))  # truncated
    other = checkpoint.tensors["blocks.1.qkv.words"]  # another weight's
    assert "wrong shape: blocks.1.down.words" in refused(damaged(checkpoint, words=other))
    garbage = words.clone()
    garbage[3, -1] = 1
    text = refused(damaged(checkpoint, words=garbage))
    assert text.startswith("blocks.1.down: the padding of words must be 0x0 throughout, 1 of")
    nan = scales.clone()
    nan[0, 0] = 0x7F
    text = refused(damaged(checkpoint, lane_scales=nan))
    assert text.startswith("blocks.1.down: nvfp4 scales must be finite")


def test_a_layout_the_format_has_not_is_refused_before_saving(seed: int) -> None:
    built = build_network(tiny(seed), "w4a8", CPU)
    with pytest.raises(QuantizationError, match=r"cublas_128x4 takes .*; int4-g128 is not"):
        to_checkpoint(built.network, built.recipe, {}, "cublas_128x4")
    with pytest.raises(QuantizationError, match="unknown layout"):
        to_checkpoint(built.network, built.recipe, {}, "marlin")
