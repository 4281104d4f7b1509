"""Failures of low-bit formats that other projects have had, each as a test of ours.

Those about files, layouts and kernels are tested beside them.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.kernels import linear
from wmrt.quant import RECIPES, QuantizedTensor, quantize
from wmrt.quant.formats import FORMATS, decode_e8m0, encode_e8m0

NAMES = tuple(FORMATS)
FOUR_BITS = tuple(name for name, fmt in FORMATS.items() if fmt.bits == 4)


def draw(seed: int, shape: tuple[int, int]) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


@pytest.mark.parametrize("name", NAMES)
def test_a_block_of_zeros_has_no_nan_scale(name: str, seed: int) -> None:
    # Model-Optimizer#1633; torchao and ModelOpt make NaN of a tensor of zeros.
    for w in (torch.zeros(4, 256), draw(seed, (4, 256)).index_fill(0, torch.tensor([2]), 0.0)):
        q = quantize(w, name)
        assert q.dequantize().isfinite().all() and not q.dequantize()[2].any()
        assert QuantizedTensor.from_tensors(name, q.shape, q.tensors()).zeroed_blocks == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_block_with_nan_is_not_erased(name: str, bad: float, seed: int) -> None:
    # compressed-tensors and ModelOpt write an MXFP4 block with NaN as zeros.
    w = draw(seed, (4, 256))
    w[1, 77] = bad
    with pytest.raises(QuantizationError, match=r"\[1, 77\]; repair the weight"):
        quantize(w, name)


def test_the_global_scale_multiplies(seed: int) -> None:
    # modular#6600: a divisor read as a multiplier, or the other way round.
    w = draw(seed, (8, 64))
    q = quantize(w, "nvfp4")
    assert q.global_scale == pytest.approx(float(w.abs().max()) / 2688, rel=1e-6)
    assert float(q.dequantize().abs().max()) == pytest.approx(float(w.abs().max()), rel=0.1)


def test_a_missing_global_scale_is_an_error(seed: int) -> None:
    # vllm#54444: left uninitialised.
    q = quantize(draw(seed, (8, 64)), "nvfp4")
    stored = q.tensors()
    del stored["global_scale"]
    with pytest.raises(QuantizationError, match="missing: global_scale"):
        QuantizedTensor.from_tensors("nvfp4", q.shape, stored)


def test_parts_of_a_fused_matrix_share_a_global_scale(seed: int) -> None:
    # vllm#47515: gate's global scale used for up too, without new block scales.
    gate, up = draw(seed, (8, 64)), draw(seed + 1, (8, 64)) * 0.03
    shared = quantize(torch.cat([gate, up]), "nvfp4").global_scale
    for part in (gate, up):
        q = quantize(part, "nvfp4", global_scale=shared)
        assert float((q.dequantize() - part).norm() / part.norm()) < 0.12
    with pytest.raises(QuantizationError, match="clipped"):
        quantize(gate, "nvfp4", global_scale=quantize(up, "nvfp4").global_scale)


def test_float16_overflow_is_refused() -> None:
    # vllm#33560.
    with pytest.raises(QuantizationError, match="65504"):
        quantize(torch.full((1, 128), 1e6), "int4-g128")
    x, w = torch.full((1, 256), 6e4), torch.full((1, 256), 30.0)
    for recipe in RECIPES.values():
        if recipe.packs:  # 256 x 1.8e6 is beyond float16: products are float32
            y = linear(recipe.weight_format, recipe.activation)(
                x, quantize(w, recipe.weight_format)
            )
            assert y.item() == pytest.approx(256 * 6e4 * 30, rel=0.13)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "fp8-channel", "int8-channel"])
def test_nothing_overflows_float32(name: str) -> None:
    q = quantize(torch.full((2, 64), torch.finfo(torch.float32).max), name)
    assert q.dequantize().isfinite().all() and (q.dequantize() > 2.5e38).all()


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("exponent", [-110, -60, -16, 60, 120])
def test_small_scales_do_not_underflow(name: str, exponent: int, seed: int) -> None:
    # vllm#34577: scales of a global scale of 1, widened to bfloat16 by shifting, became zero.
    w = draw(seed, (4, 64))
    w = (w / w.abs().max()).to(torch.bfloat16)
    scaled = quantize(w * 2.0**exponent, name).dequantize()
    assert torch.equal(scaled, quantize(w, name).dequantize() * 2.0**exponent)
    small = quantize(w * 2.0**-3, "nvfp4", global_scale=1.0)  # scales from 2^-9 to 2^-5
    assert small.zeroed_blocks == 0 and small.dequantize().any(1).all()


@pytest.mark.parametrize("k", range(-100, 101, 25))
def test_the_e8m0_exponent_is_not_off_by_one(k: int) -> None:
    # vllm#43557, FlyDSL#590; in float32 log2 just above 6 x 2^k rounds to that of 6 x 2^k.
    edge = np.float32(6.0 * 2.0**k)
    above, below = np.nextafter(edge, np.float32(np.inf)), np.nextafter(edge, np.float32(0))
    scales = decode_e8m0(encode_e8m0(torch.tensor([below, edge, above]), "rceil"))
    assert (scales * 2.0**-k).tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("columns", [1, 15, 17, 40, 100, 129])
def test_sizes_that_no_block_divides(name: str, columns: int, seed: int) -> None:
    # pytorch/ao#3233, compressed-tensors#353: refused, the second at the time of saving only.
    w = draw(seed, (3, columns))
    q = quantize(w, name)
    back = QuantizedTensor.from_tensors(name, q.shape, q.tensors()).dequantize()
    assert back.shape == w.shape and float((back - w).norm() / w.norm()) < 0.25


@pytest.mark.parametrize("name", ["int4-g48", "nvfp4-g32", "int4-g128-zp8", "mxfp4-16"])
def test_an_unknown_block_size_is_an_error(name: str) -> None:
    # onnxruntime#28551: an unknown block size gave zeros.
    with pytest.raises(QuantizationError, match="unknown weight format"):
        quantize(torch.ones(2, 96), name)


@pytest.mark.parametrize("name", [n for n in FOUR_BITS if FORMATS[n].block > 32])
def test_one_row_with_groups_above_32(name: str, seed: int) -> None:
    # torch-xpu-ops#5001: at M = 1 the scale of another group was used.
    w = draw(seed, (16, 512)) * torch.logspace(-2, 2, 8).repeat_interleave(64)
    x = draw(seed + 1, (4, 512))
    q, op = quantize(w, name), linear(name, "int8-g32")
    together = op(x, q)
    assert torch.equal(torch.cat([op(row[None], q) for row in x]), together)
    exact = x @ q.dequantize().t()
    assert float((together - exact).norm() / exact.norm()) < 0.02
