"""Properties of `quantize`: error bounds, fixed points, refusals, and blocks that underflow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant import QuantizedTensor, quantize
from wmrt.quant.formats import FORMATS, decode_codes, decode_scales
from wmrt.quant.rules import Rules

NAMES = tuple(FORMATS)
ROUNDING = 8 * 2.0**-24  # float32 operations between a weight and its dequantized value


def draw(seed: int, shape: tuple[int, int], spread: float = 0.0) -> Tensor:
    """Gaussian weights; `spread` varies the magnitude of rows and columns by powers of ten."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(shape)
    w *= 10.0 ** rng.uniform(-spread, spread, (shape[0], 1))
    w *= 10.0 ** rng.uniform(-spread, spread, (1, shape[1]))
    return torch.from_numpy(w.astype(np.float32))


def step_sizes(q: QuantizedTensor) -> Tensor:
    """float64[N, K]: scale times global scale of every element."""
    steps = decode_scales(q.scales, q.spec).double() * q.global_scale
    wide = steps.repeat_interleave(q.spec.block_of(q.shape[1]), 1)
    return wide.expand(q.shape[0], -1)[:, : q.shape[1]]


def error_bound(w: Tensor, q: QuantizedTensor) -> Tensor:
    """The distance of each element to the nearest value a code can take, and float32 rounding."""
    spec, step = q.spec, step_sizes(q)
    codes = torch.arange(256, dtype=torch.uint8).unsqueeze(0)
    levels = decode_codes(codes, spec).double().unique()
    levels = levels[~levels.isnan() & (levels != -128.0)]  # int8 is symmetric
    x = torch.where(step > 0, w.double() / step, 0.0)
    if q.zero_points is not None:
        zeros = q.zero_points.double().repeat_interleave(spec.block, 1)[:, : q.shape[1]]
        x = x + zeros - spec.zero_code
    above = torch.searchsorted(levels, x.contiguous()).clamp(0, len(levels) - 1)
    near = torch.stack([levels[above], levels[(above - 1).clamp(min=0)]])
    bound = (near - x).abs().amin(0) * step + ROUNDING * (w.double().abs() + 16 * step)
    return torch.where(step > 0, bound, w.double().abs())


sizes = st.integers(1, 5), st.integers(1, 300)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("name", NAMES)
@given(rows=sizes[0], columns=sizes[1], draw_seed=seeds, spread=st.sampled_from([0.0, 1.0, 2.0]))
def test_every_element_takes_the_nearest_value(
    name: str, rows: int, columns: int, draw_seed: int, spread: float
) -> None:
    w = draw(draw_seed, (rows, columns), spread)
    q = quantize(w, name)
    back = q.dequantize()
    assert back.shape == w.shape and back.dtype == torch.float32
    assert (back.double() - w.double()).abs().le(error_bound(w, q)).all()


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4"])
@given(columns=sizes[1], draw_seed=seeds)
def test_quantizing_again_changes_nothing(name: str, columns: int, draw_seed: int) -> None:
    # While block scales are normal numbers the largest element of a block lands on 6 (nvfp4) or
    # on 4 or 6 (mxfp4), from which the same scale follows.
    w = draw(draw_seed, (3, columns))
    q = quantize(w, name)
    if name == "nvfp4":
        again = quantize(q.dequantize(), name, global_scale=q.global_scale)
        normal = (q.scales >= 8) | (q.scales == 0)
        if not bool(normal.all()):
            return
    else:
        again = quantize(q.dequantize(), name)
    assert torch.equal(again.scales, q.scales)
    assert torch.equal(again.dequantize(), q.dequantize())


@pytest.mark.parametrize("rule", ["floor", "even", "rceil", "ceil"])
def test_scale_rules_bound_the_top(rule: str, seed: int) -> None:
    w = draw(seed, (64, 256))
    q = quantize(w, "mxfp4", rules=Rules(mx_scale=rule))
    top = float((w.double().abs() / step_sizes(q)).max())
    assert top <= {"floor": 8.0, "even": 7.0, "rceil": 6.0, "ceil": 4.0}[rule]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_float_type_is_read_through_float32(name: str, dtype: torch.dtype, seed: int) -> None:
    w = draw(seed, (4, 96)).to(dtype)
    a, b = quantize(w, name), quantize(w.float(), name)
    assert torch.equal(a.codes, b.codes) and torch.equal(a.scales, b.scales)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_stay_zeros(name: str, zero: float, seed: int) -> None:
    q = quantize(torch.full((3, 256), zero), name)
    assert q.global_scale == 1.0 and q.zeroed_blocks == 0
    assert not q.scales.any() and not q.dequantize().any()
    byte = q.spec.zero_code * (0x11 if q.spec.bits == 4 else 1)
    assert set(q.codes.unique().tolist()) == {byte}
    if q.zero_points is not None:
        assert q.zero_points.eq(8).all()
    w = draw(seed, (3, 256))
    w[1] = zero
    part = quantize(w, name)
    assert not part.dequantize()[1].any() and part.zeroed_blocks == 0
    assert part.spec.per_tensor or not part.scales[1].any()
    QuantizedTensor.from_tensors(name, part.shape, part.tensors())


def test_a_row_of_zeros_keeps_its_sign_under_a_scale_that_others_share() -> None:
    w = torch.tensor([[1.0, -0.0], [-0.0, 0.0]])
    assert quantize(w, "fp8-tensor").codes.tolist() == [[0x7E, 0x80], [0x80, 0x00]]
    assert quantize(w, "fp8-channel").codes.tolist() == [[0x7E, 0x80], [0x00, 0x00]]


@pytest.mark.parametrize("name", NAMES)
def test_blocks_that_underflow_become_zeros_and_are_counted(name: str, seed: int) -> None:
    spec = FORMATS[name]
    w = draw(seed, (4, 256))
    smallest = {"e4m3": 1e-9, "e8m0": 1e-39, "fp16": 1e-8, "fp32": 1e-44}[spec.scale]
    block = spec.block or 256
    w[2, :block] = w[2, :block].sign() * smallest
    if spec.per_tensor:
        w[2] *= 1e38  # under one scale a whole row of this size has only zero codes
    q = quantize(w, name)
    assert q.zeroed_blocks == 1 and not q.dequantize()[2, :block].any()
    assert q.lost_blocks(w) == 1 and quantize(w[:2], name).zeroed_blocks == 0
    QuantizedTensor.from_tensors(name, q.shape, q.tensors())


@pytest.mark.parametrize("amax", [1e-45, 1e-42, 1e-38, 1e-35, 1e-30, 1e30, 3e38])
@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "fp8-tensor", "fp8-channel", "int8-channel"])
def test_of_any_magnitude(name: str, amax: float, seed: int) -> None:
    w = draw(seed, (4, 64))
    w = (w / w.abs().max() * amax).float()
    q = quantize(w, name)
    assert 0 < q.global_scale < float("inf") and bool(torch.isfinite(q.dequantize()).all())
    # float32 subnormals have an absolute rounding error instead of a relative one.
    slack = 2.0**-148
    assert (q.dequantize().double() - w.double()).abs().le(error_bound(w, q) + slack).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_that_is_not_finite_is_refused(name: str, bad: float) -> None:
    w = torch.ones(3, 64)
    w[2, 5] = bad
    with pytest.raises(QuantizationError, match=r"1 elements .* \[2, 5\]"):
        quantize(w, name)


@pytest.mark.parametrize(
    "weight",
    [torch.ones(16), torch.ones(2, 2, 16), torch.ones(2, 16, dtype=torch.int32), torch.ones(0, 16)],
)
def test_only_float_matrices(weight: Tensor) -> None:
    with pytest.raises(QuantizationError, match="float matrix"):
        quantize(weight, "nvfp4")


@pytest.mark.parametrize("name", ["bf16", "nvfp5", "NVFP4", ""])
def test_an_unknown_format_is_refused(name: str) -> None:
    with pytest.raises(QuantizationError, match="nvfp4, mxfp4, int4-g128"):
        quantize(torch.ones(2, 16), name)


def test_a_recipe_stands_for_its_weight_format() -> None:
    w = torch.ones(2, 128)
    assert quantize(w, "w4a8").format == "int4-g128"
    assert quantize(w, "nvfp4-a16").format == "nvfp4"


@pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if f.element == "int4"])
def test_int4_scales_that_overflow_float16_are_refused(name: str) -> None:
    reach = 15 if FORMATS[name].has_zero_points else 7.5
    assert quantize(torch.full((1, 128), 65_500.0 * reach), name).scales.isfinite().all()
    with pytest.raises(QuantizationError, match="65504"):
        quantize(torch.full((1, 128), 65_530.0 * reach), name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("columns", [1, 15, 17, 31, 33, 127, 129, 200])
def test_tails_are_padded_with_zeros(name: str, columns: int, seed: int) -> None:
    w = draw(seed, (5, columns))
    q = quantize(w, name)
    width = q.spec.width(columns)
    assert q.shape == (5, columns) and q.codes.shape == (5, width * q.spec.bits // 8)
    assert q.scales.shape == q.spec.scale_shape((5, columns))
    full = quantize(torch.nn.functional.pad(w, (0, width - columns)), name)
    assert torch.equal(full.codes, q.codes) and torch.equal(full.scales, q.scales)
    assert not full.dequantize()[:, columns:].any()


def test_a_given_global_scale(seed: int) -> None:
    # Parts of a fused matrix quantized apart share the fused tensor's factor, not each their own.
    w = draw(seed, (8, 64))
    w[4:] *= 0.1
    fused = quantize(w, "nvfp4")
    parts = [quantize(p, "nvfp4", global_scale=fused.global_scale) for p in (w[:4], w[4:])]
    assert torch.equal(torch.cat([p.codes for p in parts]), fused.codes)
    assert torch.equal(torch.cat([p.scales for p in parts]), fused.scales)
    with pytest.raises(QuantizationError, match="clipped"):
        quantize(w, "nvfp4", global_scale=fused.global_scale / 2)
    with pytest.raises(QuantizationError, match="positive"):
        quantize(w, "nvfp4", global_scale=0.0)
    with pytest.raises(QuantizationError, match="no global scale"):
        quantize(w, "mxfp4", global_scale=1.0)


# RMS error over RMS weight for Gaussian weights, 512 x 512: means of 12 draws, which spread by at
# most 0.5%.
RMS = {"nvfp4": 0.0951, "mxfp4": 0.1118, "int4-g128": 0.1108, "int4-g64": 0.1028,
       "int4-g32": 0.0948, "int4-g128-zp": 0.1005, "int4-g64-zp": 0.0911, "int4-g32-zp": 0.0807,
       "fp8-tensor": 0.0264, "fp8-channel": 0.0263, "int8-channel": 0.0074}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_rms_error_is_what_was_measured_for_each_format(name: str, seed: int) -> None:
    w = draw(seed, (512, 512))
    error = float((quantize(w, name).dequantize() - w).norm() / w.norm())
    assert error == pytest.approx(RMS[name], rel=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_given_scales_are_kept_and_only_codes_are_rounded(name: str, seed: int) -> None:
    w = draw(seed, (8, 200))
    own = quantize(w, name)
    same = quantize(w, name, scales=own.scales, zero_points=own.zero_points)
    assert same.scales is own.scales and torch.equal(same.codes, own.codes)
    smaller = quantize(w * 0.7, name).scales
    q = quantize(
        w, name, scales=smaller, global_scale=own.global_scale if own.spec.has_global else None
    )
    assert q.scales is smaller
    assert (q.dequantize().double() - w.double()).abs().le(error_bound(w, q)).all()
    QuantizedTensor.from_tensors(name, q.shape, q.tensors())


def test_given_scales_may_clip(seed: int) -> None:
    w = draw(seed, (8, 64))
    own = quantize(w, "nvfp4")
    with pytest.raises(QuantizationError, match="clipped"):
        quantize(w, "nvfp4", global_scale=own.global_scale / 2)
    q = quantize(w, "nvfp4", scales=own.scales, global_scale=own.global_scale / 2)
    assert float(q.dequantize().abs().max()) < 0.6 * float(w.abs().max())


@pytest.mark.parametrize("name", NAMES)
def test_given_scales_that_cannot_be_meant(name: str, seed: int) -> None:
    w = draw(seed, (8, 200))
    scales = quantize(w, name).scales
    for wrong in (scales.repeat(1, 2), scales.repeat(2, 1), scales.to(torch.float64)):
        with pytest.raises(QuantizationError, match=f"scales of a {name} weight"):
            quantize(w, name, scales=wrong)
    bad = scales.clone()
    bad[-1, -1] = {"e4m3": 0x7F, "e8m0": 0xFF}.get(FORMATS[name].scale, float("nan"))
    with pytest.raises(QuantizationError, match="finite"):
        quantize(w, name, scales=bad)


def test_given_zero_points(seed: int) -> None:
    w, name = draw(seed, (4, 128)) + 1.0, "int4-g32-zp"
    q = quantize(w, name, zero_points=torch.full((4, 4), 8, dtype=torch.uint8))
    assert q.zero_points is not None and q.zero_points.eq(8).all()
    with pytest.raises(QuantizationError, match="16 are not"):
        quantize(w, name, zero_points=torch.full((4, 4), 16, dtype=torch.uint8))
    with pytest.raises(QuantizationError, match="zero_points of a int4-g32-zp weight"):
        quantize(w, name, zero_points=torch.full((4, 4), 8))
    with pytest.raises(QuantizationError, match="has no zero points"):
        quantize(w, "int4-g32", zero_points=torch.full((4, 4), 8, dtype=torch.uint8))


def test_zero_is_a_code_of_every_group(seed: int) -> None:
    # A range that does not hold 0 is widened to it: padding is made of zeros.
    for shift in (3.0, -3.0):
        w = draw(seed, (4, 100)) * 0.1 + shift
        w[:, 50] = 0.0
        q = quantize(w, "int4-g32-zp")
        assert not q.dequantize()[:, 50].any()


@pytest.mark.parametrize("rows", [1, 16, 20, 33])
def test_square_tiles(rows: int, seed: int) -> None:
    w = draw(seed, (rows, 48), 1.0)
    q = quantize(w, "nvfp4", rules=Rules(tile_rows=16))
    for first in range(0, rows, 16):
        tile = q.scales[first : first + 16]
        assert torch.equal(tile, tile[:1].expand_as(tile))
    assert (q.dequantize().double() - w.double()).abs().le(error_bound(w, q)).all()


def test_signed_max_scales_may_be_negative(seed: int) -> None:
    w = draw(seed, (32, 256))
    rules = Rules(int4_scale="signed-max", int4_ties="up")
    q = quantize(w, "int4-g32", rules=rules)
    assert (q.scales < 0).any() and (q.scales > 0).any()
    back = QuantizedTensor.from_tensors(q.format, q.shape, q.tensors())
    plain = quantize(w, "int4-g32").dequantize()
    assert float((back.dequantize() - w).norm()) < float((plain - w).norm())


def test_quantizing_leaves_the_weight_alone(seed: int) -> None:
    w = draw(seed, (4, 64))
    before = w.clone()
    q = quantize(torch.nn.Parameter(w), "nvfp4")
    assert torch.equal(w, before) and not q.dequantize().requires_grad
