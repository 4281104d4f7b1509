"""Int8 activations: one scale per 32 along K, and nothing that is not finite becomes a number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wmrt.quant.activations import quantize_groups, quantize_int8


def draw(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3, (*shape[:-1], 1))
    return torch.from_numpy(x.astype(np.float32))


@pytest.mark.parametrize("shape", [(32,), (3, 96), (2, 3, 64), (4, 1), (4, 40), (0, 64)])
def test_half_a_step_at_most(shape: tuple[int, ...], seed: int) -> None:
    x = draw(seed, shape)
    codes, scales = quantize_int8(x)
    groups = -(-shape[-1] // 32)
    assert codes.shape == (*shape[:-1], groups * 32) and codes.dtype == torch.int8
    assert scales.shape == (*shape[:-1], groups) and scales.dtype == torch.float32
    steps = scales.double().repeat_interleave(32, -1)
    back = (codes.double() * steps)[..., : shape[-1]]
    bound = steps[..., : shape[-1]] * (0.5 + 127 * 2.0**-23)  # the quotient rounds once
    assert (back - x.double()).abs().le(bound).all()
    assert not codes[..., shape[-1] :].any()


def test_values_follow_the_definition(seed: int) -> None:
    x = draw(seed, (64, 256))
    codes, scales = quantize_int8(x)
    groups = x.numpy().reshape(64, 8, 32)
    want = np.abs(groups).max(-1) / np.float32(127)
    np.testing.assert_array_equal(scales.numpy(), want)
    np.testing.assert_array_equal(
        codes.numpy(), np.rint(groups / want[..., None]).reshape(64, 256).astype(np.int8)
    )
    assert codes.abs().view(64, 8, 32).amax(-1).eq(127).all()


def test_zeros() -> None:
    codes, scales = quantize_int8(torch.tensor([[0.0, -0.0] * 16 + [1.0] * 32]))
    assert scales.tolist() == [[0.0, pytest.approx(1 / 127)]]
    assert codes[0, :32].eq(0).all() and codes[0, 32:].eq(127).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_group_that_is_not_finite_says_so(bad: float, seed: int) -> None:
    x = draw(seed, (2, 96))
    x[1, 40] = bad
    codes, scales = quantize_groups(x)
    assert not scales[1, 1].isfinite() and not codes[1, 32:64].any()
    assert (codes[1, 32:64] * scales[1, 1]).isnan().all()
    assert scales[0].isfinite().all() and scales[1, ::2].isfinite().all()


@pytest.mark.parametrize("size", [1e-45, 1e-43, 1e-40, 1e-38, 3e38])
def test_extremes_stay_finite(size: float) -> None:
    x = torch.full((1, 32), size)
    codes, scales = quantize_groups(x)
    assert codes.isfinite().all() and codes.abs().le(127).all() and scales.isfinite().all()
    assert (codes * scales - x).abs().le(64 * 2.0**-149 + size * 0.004).all()


def test_padding_to_a_wider_block(seed: int) -> None:
    x = draw(seed, (3, 40))
    codes, scales = quantize_groups(x, padded_to=128)
    assert codes.shape == (3, 128) and scales.shape == (3, 4)
    assert not codes[:, 40:].any() and not scales[:, 2:].any()
