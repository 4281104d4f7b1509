"""The linear layer and layouts: what its operator reads is held, converted once or not at all."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from wmrt.core.errors import QuantizationError
from wmrt.kernels import linear as pick
from wmrt.kernels import registry
from wmrt.model.linear import Linear
from wmrt.quant import RECIPES, QuantizedTensor, quantize
from wmrt.quant.layouts import LaidOut, from_layout, stored, to_layout

CASES = [(layout, name) for layout in ("cpu_interleaved", "gpu_gemv", "cublas_128x4")
         for name in ("nvfp4", "mxfp4", "w4a8", "w4a8-zp")
         if layout != "cublas_128x4" or name in ("nvfp4", "mxfp4")]  # fmt: skip


def layer(seed: int, columns: int = 96, rows: int = 40) -> Linear:
    torch.manual_seed(seed)
    return Linear(columns, rows)


def inputs(seed: int, *shape: int) -> Tensor:
    rng = np.random.default_rng(seed + 1)
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def in_layout(seed: int, name: str, layout: str, *size: int) -> dict[str, Tensor]:
    weight = layer(seed, *size).weight
    assert weight is not None
    return to_layout(quantize(weight, RECIPES[name].weight_format), layout)


@pytest.fixture(params=CASES, ids="-".join)
def recorder(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """Layout and recipe for which an operator "recorder" reads that layout, and records its weight.

    It unpacks and calls the reference operator.
    """
    layout, name = request.param
    recipe = RECIPES[name]
    monkeypatch.setattr(registry, "_OPS", dict(registry._OPS))

    @registry.register(recipe.weight_format, recipe.activation, "recorder", layout=layout)
    def read(x: Tensor, weight: LaidOut) -> Tensor:
        assert isinstance(weight, LaidOut) and weight.layout == layout
        held = from_layout(weight.format, weight.shape, weight.layout, weight.tensors)
        assert held.global_scale == weight.global_scale
        return pick(recipe.weight_format, recipe.activation).function(x, held)

    yield layout, name


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_what_the_reference_cannot_read_is_converted_once(
    layout: str, name: str, seed: int
) -> None:
    want, x = layer(seed).pack(name), inputs(seed, 2, 96)
    target = nn.ModuleDict({"qkv": layer(seed + 1).expect(name, layout=layout)})
    laid = {f"qkv.{key}": t for key, t in in_layout(seed, name, layout).items()}
    assert set(target.state_dict()) == set(laid)
    target.load_state_dict(laid, assign=True)
    linear = target["qkv"]
    assert isinstance(linear, Linear)
    assert (linear.stored_layout, linear.layout) == (layout, "canonical")
    assert list(linear.state_dict()) == list(want.state_dict())
    for key, tensor in want.state_dict().items():
        assert torch.equal(linear.state_dict()[key], tensor), key
    assert torch.equal(linear(x), want(x)) and linear.packed_bytes() == want.packed_bytes()
    first = linear.quantized()
    linear(x)
    assert linear.quantized() is first and first.codes is linear.codes
    for key, tensor in linear.tensors(layout).items():
        assert torch.equal(tensor, laid[f"qkv.{key}"]), key


def test_what_the_operator_reads_stays_the_file_s(
    recorder: tuple[str, str], seed: int, tmp_path: Path
) -> None:
    layout, name = recorder
    want, x = layer(seed).pack(name), inputs(seed, 2, 96)
    save_file(in_layout(seed, name, layout), tmp_path / "w.safetensors")
    file = load_file(tmp_path / "w.safetensors")
    linear = layer(seed + 1).expect(name, "recorder", layout)
    linear.load_state_dict(file, assign=True)
    assert (linear.stored_layout, linear.layout) == (layout, layout)
    for key, tensor in linear.state_dict().items():
        assert tensor.data_ptr() == file[key].data_ptr(), key
    assert linear.tensors(layout).keys() == file.keys()
    assert torch.equal(linear(x), want(x)) and linear.kernel.endswith(".recorder")
    got, expected = linear.quantized(), want.quantized()
    assert torch.equal(got.codes, expected.codes) and torch.equal(got.scales, expected.scales)
    assert linear.quantized() is not got  # a copy each time, none is kept
    twin = copy.deepcopy(linear)
    assert torch.equal(twin.to("cpu")(x), want(x))


def test_packing_arranges_for_the_operator(recorder: tuple[str, str], seed: int) -> None:
    layout, name = recorder
    linear, x = layer(seed).pack(name, "recorder"), inputs(seed, 2, 96)
    assert (linear.stored_layout, linear.layout) == (None, layout)
    for key, tensor in in_layout(seed, name, layout).items():
        assert torch.equal(linear.state_dict()[key], tensor)
    assert torch.equal(linear(x), layer(seed).pack(name)(x))


def test_canonical_is_arranged_for_an_operator_that_reads_another(
    recorder: tuple[str, str], seed: int
) -> None:
    layout, name = recorder
    linear = layer(seed + 1).expect(name, "recorder")
    linear.load_state_dict(layer(seed).pack(name).state_dict(), assign=True)
    assert (linear.stored_layout, linear.layout) == ("canonical", layout)
    x = inputs(seed, 3, 96)
    assert torch.equal(linear(x), layer(seed).pack(name)(x))


def test_a_changed_tensor_is_seen(recorder: tuple[str, str], seed: int) -> None:
    _, name = recorder
    linear, other = layer(seed).pack(name, "recorder"), layer(seed + 1).pack(name, "recorder")
    x, before = inputs(seed, 2, 96), linear(inputs(seed, 2, 96))
    for key, tensor in other.state_dict().items():
        setattr(linear, key, tensor)
    assert torch.equal(linear(x), other(x)) and not torch.equal(linear(x), before)


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_damage_names_the_layer_and_loads_nothing_wrong(layout: str, name: str, seed: int) -> None:
    laid = in_layout(seed, name, layout)
    key = next(key for key in laid if "scale" in key or key == "interleaved")
    for wrong, match in (
        (laid[key][:-1], "size mismatch"),
        (laid[key].to(torch.int32), "must be"),
    ):
        target = nn.ModuleDict({"qkv": layer(seed).expect(name, layout=layout)})
        found = {f"qkv.{k}": t for k, t in {**laid, key: wrong}.items()}
        with pytest.raises((QuantizationError, RuntimeError), match=match):
            target.load_state_dict(found, assign=True)
    damaged = {f"qkv.{k}": t.clone() for k, t in laid.items()}
    damaged[f"qkv.{key}"].view(-1)[-1] = 3  # padding of every layout at K = 96, N = 40
    target = nn.ModuleDict({"qkv": layer(seed).expect(name, layout=layout)})
    with pytest.raises(QuantizationError, match=r"^qkv: the padding of "):
        target.load_state_dict(damaged, assign=True)


def test_what_cannot_be_expected(seed: int) -> None:
    with pytest.raises(QuantizationError, match="unknown layout 'marlin'"):
        layer(seed).expect("nvfp4", layout="marlin")
    linear = layer(seed)
    with pytest.raises(QuantizationError, match=r"cublas_128x4 takes .* int4-g128 is not"):
        linear.expect("w4a8", layout="cublas_128x4")
    assert linear.recipe is None and list(linear.state_dict()) == ["weight"]
    bf16 = layer(seed).expect("bf16", layout="gpu_gemv")  # nothing packed, nothing to arrange
    assert (bf16.layout, bf16.stored_layout) == (None, None)


@pytest.mark.parametrize("layout", ["cpu_interleaved", "gpu_gemv", "cublas_128x4"])
def test_an_expected_layer_has_the_size_of_what_is_stored(layout: str, seed: int) -> None:
    linear = layer(seed).expect("nvfp4", layout=layout)
    specs = stored(layout, "nvfp4", (40, 96))
    held = {key: (tuple(t.shape), t.dtype) for key, t in linear.state_dict().items()}
    assert held == specs and isinstance(layer(seed).pack("nvfp4").quantized(), QuantizedTensor)
