"""Activations: scales per 32 along K or per token; nothing that is not finite becomes a number."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wmrt.core.errors import QuantizationError
from wmrt.quant.activations import TOKEN_FORMATS, quantize_groups, quantize_int8, quantize_tokens
from wmrt.quant.rules import Rules


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


@pytest.mark.parametrize("size", [1e-45, 1e-43, 190 * 2.0**-149, 1e-40, 1e-38, 3e38])
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


@pytest.mark.parametrize("shape", [(32,), (3, 96), (2, 3, 65), (4, 1), (0, 64)])
@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_tokens_follow_the_definition(name: str, shape: tuple[int, ...], seed: int) -> None:
    x = draw(seed, shape)
    codes, scales = quantize_tokens(x, name)
    assert codes.shape == shape and scales.shape == (*shape[:-1], 1)
    assert codes.dtype == scales.dtype == torch.float32
    amax = np.abs(x.numpy()).max(-1, keepdims=True, initial=0.0)
    if name == "int8-token":
        want = amax / np.float32(127)
        rounded = np.rint(x.numpy() / want)
    else:
        want = amax / np.float32(448)
        quotients = torch.from_numpy(np.minimum(np.maximum(x.numpy() / want, -448), 448))
        rounded = quotients.to(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(scales.numpy(), want)
    np.testing.assert_array_equal(codes.numpy(), rounded)


@pytest.mark.parametrize("rule", ["amax/127", "amax/127.5"])
def test_int8_tokens_by_rule(rule: str, seed: int) -> None:
    x = draw(seed, (64, 100))
    x[:, 0] = -x.abs().amax(1)
    codes, scales = quantize_tokens(x, "int8-token", Rules(int8_scale=rule))
    largest = 127.0 if rule == "amax/127" else 127.5
    assert torch.equal(scales[:, 0], x[:, 0].abs() / largest)
    assert codes.min() == (-127 if rule == "amax/127" else -128) and codes.max() <= 127


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_tokens_of_zeros(name: str) -> None:
    codes, scales = quantize_tokens(torch.tensor([[0.0, -0.0], [1.0, 0.0]]), name)
    assert scales[0].item() == 0.0 and not codes[0].any() and codes[1, 0] > 0


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_a_token_that_is_not_finite_says_so(name: str, bad: float, seed: int) -> None:
    x = draw(seed, (3, 96))
    clean = quantize_tokens(x, name)
    x[1, 40] = bad
    codes, scales = quantize_tokens(x, name)
    assert not scales[1].isfinite().any() and not codes[1].any()
    assert (codes[1] * scales[1]).isnan().all()
    assert torch.equal(codes[::2], clean[0][::2]) and torch.equal(scales[::2], clean[1][::2])


@pytest.mark.parametrize("size", [1e-45, 1e-43, 190 * 2.0**-149, 1e-40, 1e-38, 3e38])
@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_extreme_tokens_stay_finite(name: str, size: float) -> None:
    x = torch.full((1, 32), size)
    codes, scales = quantize_tokens(x, name)
    assert codes.isfinite().all() and scales.isfinite().all()
    # Half a step of a subnormal scale, times the largest code.
    assert (codes * scales - x).abs().le(225 * 2.0**-149 + size * 0.004).all()


def test_tokens_are_refused() -> None:
    with pytest.raises(QuantizationError, match="'int8-g32'; formats are int8-token, fp8-token"):
        quantize_tokens(torch.ones(2, 8), "int8-g32")
    with pytest.raises(QuantizationError, match="at least one element"):
        quantize_tokens(torch.ones(2, 0), "fp8-token")


def test_other_float_types_are_read_through_float32(seed: int) -> None:
    x = draw(seed, (4, 64)).to(torch.bfloat16)
    for name in TOKEN_FORMATS:
        for a, b in zip(quantize_tokens(x, name), quantize_tokens(x.float(), name), strict=True):
            assert torch.equal(a, b)
