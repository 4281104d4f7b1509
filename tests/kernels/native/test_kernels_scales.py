"""Scales at the ends of what their formats can say, and the activations' own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.kernels import oracle
from tests.kernels.native import call
from tests.kernels.native.call import Layer, activations, packed, prepared_and_run, run, same
from wmrt.kernels import linear
from wmrt.kernels.native.library import Isa
from wmrt.quant import QuantizedTensor
from wmrt.quant.activations import quantize_groups

ISAS = [pytest.param(isa, id=isa.name) for isa in call.ISAS]
UNIT = np.dtype([("code", "i1", 256), ("scale", "f4", 16), ("offset", "i4", 16)])


def one_code_a_row(format: str, scales: NDArray[np.generic], rng: np.random.Generator) -> Layer:
    """Row n: the n-th scale, and one weight of +-1 somewhere in the first 16."""
    block, zero, ones = {
        "nvfp4": (16, 0, [2, 10]),
        "mxfp4": (32, 0, [2, 10]),
        "int4-g128": (128, 8, [7, 9]),
    }[format]
    codes = np.full((len(scales), block), zero, np.uint8)
    codes[np.arange(len(scales)), rng.integers(0, 16, len(scales))] = rng.choice(ones, len(scales))
    return Layer(packed(format, codes, scales[:, None]), "int8-g32")


def every_scale(format: str) -> NDArray[np.generic]:
    """Of nvfp4 and mxfp4 all 256 bytes, NaN and negative ones too; of float16 the corners."""
    if format != "int4-g128":
        return np.arange(256, dtype=np.uint8)
    bits = [0, 1, 2, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7E00]
    return np.array([b | sign for b in bits for sign in (0, 0x8000)], np.uint16).view(np.float16)


@pytest.mark.parametrize(("format", "activation"), call.A8 + call.A16)
@pytest.mark.parametrize("isa", ISAS)
def test_every_scale_has_the_bits_of_the_reference(
    isa: Isa, format: str, activation: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    layer = one_code_a_row(format, every_scale(format), rng)
    layer.activation = activation
    # Codes of 1 where the weights may be: times 2^127 they still fit.
    x = torch.full((3, layer.weight.shape[1]), 1.0) * torch.tensor([[1.0], [0.37], [-2.5]])
    x[:, 16:17] *= 127
    expected = linear(format, activation)(x, layer.weight)
    assert same(run(isa, layer, x) + 0.0, expected + 0.0)  # -0 counts as 0
    one = torch.cat([run(isa, layer, row[None]) for row in x])
    assert same(one + 0.0, expected + 0.0)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("isa", ISAS)
def test_a_bad_scale_changes_no_other_row(isa: Isa, format: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(format, (9, 1024), rng)
    assert isinstance(weight, QuantizedTensor)
    x = activations(rng, (3, 1024))
    before = run(isa, Layer(weight, "int8-g32"), x)
    weight.scales[4, 7] = 0xFF
    after = run(isa, Layer(weight, "int8-g32"), x)
    assert after[:, 4].isnan().all()
    others = [n for n in range(9) if n != 4]
    assert torch.equal(after[:, others], before[:, others])


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "int4-g128"])
@pytest.mark.parametrize("isa", ISAS)
def test_scales_of_all_sizes_in_a_row(isa: Isa, format: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    block = {"nvfp4": 16, "mxfp4": 32, "int4-g128": 128}[format]
    codes = rng.integers(0, 16, (12, 1280)).astype(np.uint8)
    shape = (12, 1280 // block)
    scales: NDArray[np.generic] = rng.integers(0, 0x7F, shape).astype(np.uint8)
    if format == "mxfp4":  # products stay above float32's subnormal numbers
        scales = rng.integers(60, 180, shape).astype(np.uint8)
    if format == "int4-g128":
        scales = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 3, shape)).astype(np.float16)
    layer, x = Layer(packed(format, codes, scales), "int8-g32"), activations(rng, (5, 1280))
    layer.exact(x).check(run(isa, layer, x))


def groups(rng: np.random.Generator, columns: int) -> torch.Tensor:
    """Rows of activations that are hard to quantize."""
    x = activations(rng, (12, columns))
    x[0] = 0.0
    x[1] = torch.nan
    x[2, 3], x[2, 40], x[2, 41] = torch.inf, -torch.inf, torch.nan
    x[3] = torch.from_numpy(rng.integers(-254, 255, columns).astype(np.float32) / 2)  # halves
    x[3, ::32] = 127.0
    x[4] *= torch.tensor(1e30)
    x[5] *= torch.tensor(1e-30)
    x[6] = torch.finfo(torch.float32).max
    x[7, ::2] = -0.0
    x[8, 5::32] *= 1e6
    return x


@pytest.mark.parametrize("format", ["nvfp4", "int4-g128"])
@pytest.mark.parametrize("columns", [1, 31, 100, 256, 700])
@pytest.mark.parametrize("isa", ISAS)
def test_int8_activations_are_those_of_the_reference(
    isa: Isa, columns: int, format: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    layer, x = call.layer((format, "int8-g32"), (2, columns), rng), groups(rng, max(columns, 64))
    x = x[:, :columns].contiguous()
    units = prepared_and_run(isa, layer, x)[0].view(UNIT)
    codes, scales = quantize_groups(x, padded_to=256)
    # Code 128 h + 64 p + 4 l + i is element 16 l + 8 h + 4 p + i.
    got = units["code"].reshape(len(x), -1, 2, 2, 16, 4).transpose(0, 1, 4, 2, 3, 5)
    assert np.array_equal(got.reshape(len(x), -1), codes.numpy())
    both = np.repeat(scales.numpy(), 2, 1)
    assert np.array_equal(units["scale"].reshape(len(x), -1), both, equal_nan=True)
    sums = codes.numpy().reshape(len(x), -1, 16).sum(-1)
    shift = 8 if format == "int4-g128" else 12
    if isa.name == "avx512-vnni":  # its dot products start from it, avx512.h says
        shift = -shift
    assert np.array_equal(units["offset"].reshape(len(x), -1), shift * sums)


@pytest.mark.parametrize("isa", ISAS)
def test_bfloat16_activations_are_rounded_as_torch_does(isa: Isa, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = groups(rng, 600)
    x[9] = torch.from_numpy(rng.integers(0, 2**32, 600, dtype=np.uint32).view(np.float32))
    rounded = torch.nn.functional.pad(x.to(torch.bfloat16).float(), (0, 168))
    plain = prepared_and_run(isa, call.layer(("bf16", "bf16"), (1, 600), rng), x)[0]
    assert same(torch.from_numpy(plain.view(np.float32)), rounded)
    units = prepared_and_run(isa, call.layer(("nvfp4", "bf16"), (1, 600), rng), x)[0]
    order = units.view(np.float32).reshape(len(x), -1, 2, 2, 16, 4).transpose(0, 1, 4, 2, 3, 5)
    if isa.name == "avx512-vnni":  # value 16 e + l is element e of block l, avx512.h says
        order = units.view(np.float32).reshape(len(x), -1, 16, 16).transpose(0, 1, 3, 2)
    assert same(torch.from_numpy(order.reshape(len(x), -1).copy()), rounded)
