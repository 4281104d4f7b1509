"""Fusing weights that were quantized apart: one global scale, derived for all of them."""

from __future__ import annotations

import pytest
import torch

from tests.quant.test_interchange import random_weight, same
from wmrt.core.errors import QuantizationError
from wmrt.quant import QuantizedTensor, quantize
from wmrt.quant.interchange import fuse


@pytest.mark.parametrize("format", ["mxfp4", "int4-g32", "int4-g128-zp"])
def test_formats_without_a_global_scale_are_stacked(format: str, seed: int) -> None:
    parts = [quantize(random_weight(seed + rows, rows, 72), format) for rows in (5, 8, 3)]
    fused = fuse(parts)
    assert fused.shape == (16, 72)
    assert torch.equal(fused.dequantize(), torch.cat([part.dequantize() for part in parts]))
    whole = QuantizedTensor.from_tensors(format, (16, 72), fused.tensors())
    assert same(whole, fused)


def test_one_global_scale_is_kept_to_the_bit(seed: int) -> None:
    weight = random_weight(seed, 24, 64)
    factor = quantize(weight, "nvfp4").global_scale
    parts = [quantize(rows, "nvfp4", global_scale=factor) for rows in weight.split(8)]
    assert same(fuse(parts), quantize(weight, "nvfp4"))


def test_a_power_of_two_between_globals_changes_no_value(seed: int) -> None:
    gate = quantize(random_weight(seed, 8, 64), "nvfp4")
    up = QuantizedTensor(gate.format, gate.shape, gate.codes, gate.scales, gate.global_scale / 4)
    fused = fuse([up, gate])
    assert fused.global_scale == gate.global_scale
    keeps = (up.scales == 0) | (up.scales >= 0x18)  # normal scales, and normal a quarter of that
    change = (fused.dequantize()[:8] - up.dequantize()).view(8, 4, 16)[keeps]
    assert not change.any()
    assert torch.equal(fused.codes[8:], gate.codes) and torch.equal(fused.scales[8:], gate.scales)


def test_differing_globals_are_not_one_of_them(seed: int) -> None:
    gate, up = random_weight(seed, 16, 256), random_weight(seed + 1, 16, 256) * 0.37
    parts = [quantize(gate, "nvfp4"), quantize(up, "nvfp4")]
    fused = fuse(parts)
    large, small = sorted(parts, key=lambda part: -part.global_scale)
    first = parts.index(large) * 16
    rows = slice(16 - first, 32 - first)  # of the part whose scales are derived again
    assert fused.global_scale == large.global_scale
    assert torch.equal(fused.codes[first : first + 16], large.codes)
    error = (fused.dequantize()[rows] - small.dequantize()).norm() / small.dequantize().norm()
    # A scale is at most 1/17 from its E4M3 neighbour; codes round again, by at most a sixth of
    # the block's largest. Measured 0.03; one part's global for both is off by its whole ratio.
    assert float(error) < 0.06
    wrong = QuantizedTensor("nvfp4", small.shape, small.codes, small.scales, large.global_scale)
    ratio = large.global_scale / small.global_scale - 1
    off = (wrong.dequantize() - small.dequantize()).norm() / small.dequantize().norm()
    assert float(off) == pytest.approx(ratio, rel=1e-3)
    # And against the float weights the second rounding costs little: 1.036 times the error in the
    # median of 3 000 seeds, 1.125 in the worst. The wrong global is off by its whole ratio.
    weight = (gate, up)[parts.index(small)]
    once, twice = ((w - weight).norm() for w in (small.dequantize(), fused.dequantize()[rows]))
    assert float(twice) < 1.2 * float(once)


def test_what_cannot_be_fused(seed: int) -> None:
    a, b = (quantize(random_weight(seed, 4, columns), "nvfp4") for columns in (64, 32))
    with pytest.raises(QuantizationError, match="nothing to fuse"):
        fuse([])
    with pytest.raises(QuantizationError, match="64 columns with nvfp4 of 32"):
        fuse([a, b])
    with pytest.raises(QuantizationError, match="with mxfp4"):
        fuse([a, quantize(random_weight(seed, 4, 64), "mxfp4")])
    with pytest.raises(QuantizationError, match="4-bit"):
        fuse([quantize(random_weight(seed, 4, 64), "int8-channel")])
