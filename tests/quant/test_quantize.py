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
from wmrt.quant.formats import FORMATS, decode_scales
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
    return steps.repeat_interleave(q.spec.block, 1)[:, : q.shape[1]]


def error_bound(w: Tensor, q: QuantizedTensor) -> Tensor:
    """Half the gap between the levels around |w| / step; beyond the last level, the distance to it.

    INT4 has one more negative level than positive.
    """
    step = step_sizes(q)
    size = torch.where(step > 0, w.double().abs() / step, 0.0)
    if q.format == "int4-g128":
        top = torch.where(w < 0, 8.0, 7.0)
        gap = torch.ones_like(size)
    else:
        top = torch.full_like(size, 6.0)
        gap = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    bound = torch.where(size <= top, gap / 2, size - top) * step
    return torch.where(step > 0, bound, w.double().abs()) + ROUNDING * w.double().abs()


sizes = st.integers(1, 5), st.integers(1, 300)
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("name", NAMES)
@given(rows=sizes[0], columns=sizes[1], draw_seed=seeds, spread=st.sampled_from([0.0, 1.0, 2.0]))
def test_error_is_within_half_a_step(
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
    assert set(q.codes.unique().tolist()) == {q.spec.zero_code * 0x11}
    w = draw(seed, (3, 256))
    w[1, :128] = zero
    part = quantize(w, name)
    assert not part.dequantize()[1, :128].any()
    assert not part.scales[1, : 128 // part.spec.block].any()
    QuantizedTensor.from_tensors(name, part.shape, part.tensors())


def test_underflowing_blocks_become_zeros_and_are_counted() -> None:
    w = torch.zeros(2, 64)
    w[0, 0] = 1.0
    w[1, 16] = 1e-7  # its scale, 0.5e-4 of the smallest, rounds to 0
    w[1, 33] = 1.0
    q = quantize(w, "nvfp4")
    assert q.zeroed_blocks == 1 and q.scales[1].tolist() == [0, 0, 126, 0]
    assert not q.dequantize()[1, 16:32].any()
    tiny = torch.full((1, 128), 1e-8)  # amax / 7.5 is below half the smallest float16
    p = quantize(tiny, "int4-g128")
    assert p.zeroed_blocks == 1 and not p.scales.any() and not p.dequantize().any()


@pytest.mark.parametrize("amax", [1e-45, 1e-42, 1e-38, 1e-35, 1e-30, 1e30, 3e38])
def test_nvfp4_of_any_magnitude(amax: float, seed: int) -> None:
    w = draw(seed, (4, 64))
    w = (w / w.abs().max() * amax).float()
    q = quantize(w, "nvfp4")
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


def test_int4_scales_that_overflow_float16_are_refused() -> None:
    assert quantize(torch.full((1, 128), 490_000.0), "w4a8").scales.isfinite().all()
    with pytest.raises(QuantizationError, match="65504"):
        quantize(torch.full((1, 128), 500_000.0), "w4a8")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("columns", [1, 15, 17, 31, 33, 127, 129, 200])
def test_tails_are_padded_with_zeros(name: str, columns: int, seed: int) -> None:
    w = draw(seed, (5, columns))
    q = quantize(w, name)
    width = -(-columns // q.spec.block) * q.spec.block
    assert q.shape == (5, columns) and q.codes.shape == (5, width // 2)
    assert q.scales.shape == (5, width // q.spec.block)
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


def test_rms_error_is_what_was_measured_for_each_format(seed: int) -> None:
    # Relative to the weights, for Gaussian ones: 0.0956 nvfp4, 0.112 mxfp4, 0.112 int4-g128.
    w = draw(seed, (512, 512))
    for name, expected in (("nvfp4", 0.0956), ("mxfp4", 0.112), ("int4-g128", 0.112)):
        error = float((quantize(w, name).dequantize() - w).norm() / w.norm())
        assert error == pytest.approx(expected, rel=0.03), name


def test_quantizing_leaves_the_weight_alone(seed: int) -> None:
    w = draw(seed, (4, 64))
    before = w.clone()
    q = quantize(torch.nn.Parameter(w), "nvfp4")
    assert torch.equal(w, before) and not q.dequantize().requires_grad
