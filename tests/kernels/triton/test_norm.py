"""RMSNorm kernels in the repaired interpreter, against torch and the reference quantizer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from wmrt.core.errors import UsageError
from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.norm import quantize_groups as quantize_kernel
from wmrt.kernels.triton.norm import rms_norm, rms_norm_int8, rms_norm_to
from wmrt.model.trunk import RMS_EPS, RMSNorm
from wmrt.quant.activations import quantize_groups

WIDTHS = (1, 31, 64, 256, 300, 2048)


def rows(seed: int, width: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, RMSNorm]:
    generator = torch.Generator().manual_seed(seed)
    norm = RMSNorm(width)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(width, generator=generator))
    sizes = torch.tensor([1.0, 1e-6, 1e4])[:, None]
    return (torch.randn(3, width, generator=generator) * sizes).to(dtype), norm


def test_eps_is_the_models(seed: int) -> None:
    assert RMS_EPS == 1e-5


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_rms_norm(width: int, dtype: torch.dtype, seed: int) -> None:
    """Within the roundings of float32: of a square and a sum of them in a tree, halved by the root,
    and of five more operations; float64 is the truth."""
    x, norm = rows(seed, width, dtype)
    with repaired():
        got = rms_norm(x, norm.weight, RMS_EPS)
    wide = x.double()
    want = wide / (wide.square().mean(-1, keepdim=True) + RMS_EPS).sqrt() * norm.weight.double()
    steps = (2 + math.log2(max(2, width))) / 2 + 5
    # numpy's sum adds 8 partial sums of up to 128 numbers in turn before it pairs.
    steps += min(width, 128) / 8 / 2
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=steps * 2.0**-24)
    assert got.dtype == torch.float32 and got.shape == x.shape
    # torch's own is one more of the same kind.
    np.testing.assert_allclose(got.numpy(), norm(x.float()).numpy(), rtol=2 * steps * 2.0**-23)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("padded_to", [32, 256])
@torch.no_grad()
def test_codes_are_the_references_of_the_same_rows(width: int, padded_to: int, seed: int) -> None:
    x, norm = rows(seed, width)
    with repaired():
        normed = rms_norm(x, norm.weight, RMS_EPS)
        codes, scales = rms_norm_int8(x, norm.weight, RMS_EPS, padded_to=padded_to)
    want, want_scales = quantize_groups(normed, padded_to=padded_to)
    assert codes.dtype == torch.int8
    np.testing.assert_array_equal(codes.numpy(), want.to(torch.int8).numpy())
    np.testing.assert_array_equal(scales.numpy(), want_scales.numpy())


@triton.jit
def groups(x: tl.tensor, codes: tl.tensor, scales: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.arange(0, BLOCK)
    whole, steps = quantize_kernel(tl.load(x + at), 32)
    tl.store(codes + at, tl.reshape(whole, (BLOCK,)))
    tl.store(scales + tl.arange(0, BLOCK // 32), steps)


def test_codes_are_those_of_true_divisions(seed: int) -> None:
    """Numbers next to halves of a scale, in magnitudes down to 2^-90; smaller ones are zeros."""
    rng = np.random.default_rng(seed)
    count = 1 << 14
    scale = np.exp2(rng.uniform(-90, 100, (count // 32, 1))).astype(np.float32)
    x = (scale * (rng.integers(-127, 127, (count // 32, 32)) + 0.5)).astype(np.float32)
    x = (x.view(np.int32) + rng.integers(-2, 3, x.shape).astype(np.int32)).view(np.float32)
    x[:, 0] = 127 * scale[:, 0]
    x[0], x[1], x[2] = 0.0, 1e-30, rng.standard_normal(32) * 2.0**-96
    given = torch.from_numpy(x.ravel())
    codes, scales = torch.empty(count, dtype=torch.int8), torch.empty(count // 32)
    with repaired():
        groups[(1,)](given, codes, scales, BLOCK=count)
    want, want_scales = quantize_groups(given)
    assert torch.equal(scales, want_scales)
    assert torch.equal(codes[96:], want[96:].to(torch.int8)) and not codes[:96].any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@torch.no_grad()
def test_what_is_not_finite_stays_so(value: float, seed: int) -> None:
    """One such number in a row makes all of its scales NaN; other rows do not change."""
    x, norm = rows(seed, 64)
    with repaired():
        clean = rms_norm_int8(x, norm.weight, RMS_EPS)
        x[1, 5] = value
        codes, scales = rms_norm_int8(x, norm.weight, RMS_EPS)
        normed = rms_norm(x, norm.weight, RMS_EPS)
    want, want_scales = quantize_groups(normed)
    np.testing.assert_array_equal(codes.numpy(), want.to(torch.int8).numpy())
    np.testing.assert_array_equal(scales.numpy(), want_scales.numpy())
    assert not bool(torch.isfinite(scales[1]).all())
    for got, before in zip((codes, scales), clean, strict=True):
        assert torch.equal(got[::2], before[::2])


@torch.no_grad()
def test_rows_of_zeros_and_no_rows() -> None:
    with repaired():
        codes, scales = rms_norm_int8(torch.zeros(2, 64), torch.ones(64), RMS_EPS)
        assert rms_norm(torch.zeros(0, 64), torch.ones(64), RMS_EPS).shape == (0, 64)
    assert not codes.any() and not scales.any()


@pytest.mark.parametrize(
    ("x", "weight", "says"),
    [
        (torch.zeros(2, 8, dtype=torch.int32), torch.ones(8), r"x is torch.int32 \[2, 8\]"),
        (torch.zeros(8, 2).t(), torch.ones(8), "contiguous floats"),
        (torch.zeros(1, 16385), torch.ones(16385), "K up to 16384"),
        (torch.zeros(2, 8), torch.ones(7), r"float32 \[7\]; it has to be float32 \[8\]"),
        (torch.zeros(2, 8), torch.ones(8, dtype=torch.float64), "has to be float32"),
    ],
)
def test_arguments_are_checked(x: torch.Tensor, weight: torch.Tensor, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rms_norm(x, weight, RMS_EPS)


def test_padding_is_whole_groups() -> None:
    with pytest.raises(UsageError, match="padded_to=48: a multiple of 32"):
        rms_norm_int8(torch.zeros(1, 32), torch.ones(32), RMS_EPS, padded_to=48)


@pytest.mark.parametrize("width", WIDTHS)
@torch.no_grad()
def test_into_rows_that_lie_apart(width: int, seed: int) -> None:
    """The bits of `rms_norm`, and nothing beside them."""
    x, norm = rows(seed, width)
    out = torch.full((3, width + 5), 7.0)
    with repaired():
        rms_norm_to(x, norm.weight, RMS_EPS, out[:, 2 : width + 2])
        assert torch.equal(out[:, 2 : width + 2], rms_norm(x, norm.weight, RMS_EPS))
    assert (out[:, :2] == 7).all() and (out[:, width + 2 :] == 7).all()
    torch.ops.wmrt.rms_norm_to(x, norm.weight, RMS_EPS, out[:, 2 : width + 2])
    assert torch.equal(out[:, 2 : width + 2], norm(x))


@pytest.mark.parametrize(
    ("x", "out", "says"),
    [
        (torch.zeros(17, 8), torch.zeros(17, 8), "first of 1 to 16 robots"),
        (torch.zeros(2, 8).double(), torch.zeros(2, 8), "x is torch.float64"),
        (torch.zeros(2, 8), torch.zeros(8, 2).t(), r"out is .* each is dense"),
        (torch.zeros(2, 7), torch.zeros(2, 7), r"weight is .*\[8\].*\[7\]"),
        (torch.zeros(1, 16385), torch.zeros(1, 16385), "takes 1 to 16384"),
    ],
)
def test_arguments_of_rms_norm_to(x: torch.Tensor, out: torch.Tensor, says: str) -> None:
    for call in (rms_norm_to, torch.ops.wmrt.rms_norm_to):
        with pytest.raises(UsageError, match=says):
            call(x, torch.ones(8), RMS_EPS, out)
