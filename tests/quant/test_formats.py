"""The number formats against ml_dtypes, and against their definitions in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from wmrt.core.errors import QuantizationError
from wmrt.quant import formats

ALL_BYTES = torch.arange(256, dtype=torch.uint8)


def random_floats(seed: int, count: int = 200_000) -> np.ndarray:
    """Finite float32 of every magnitude: random bit patterns."""
    bits = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    values = bits.view(np.float32)
    return values[np.isfinite(values)]


def around(values: np.ndarray) -> np.ndarray:
    """Each value with both float32 neighbours, in both signs."""
    values = values.astype(np.float32)
    near = [values, np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(0))]
    all_near = np.concatenate(near)
    return np.concatenate([all_near, -all_near])


def midpoints(grid: np.ndarray) -> np.ndarray:
    return (grid[1:].astype(np.float64) + grid[:-1]) / 2


def same_bits(got: torch.Tensor, want: np.ndarray) -> None:
    """Equal bit for bit, any NaN being as good as another."""
    mine = got.numpy()
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(mine), nan)
    np.testing.assert_array_equal(mine[~nan].view(np.uint32), want[~nan].view(np.uint32))


def test_e2m1_decodes_every_code() -> None:
    codes = np.arange(16, dtype=np.uint8)
    want = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    same_bits(formats.decode_e2m1(torch.from_numpy(codes)), want)


def test_e2m1_encodes_like_ml_dtypes(seed: int) -> None:
    grid = np.array(formats.E2M1_VALUES, np.float32)
    rng = np.random.default_rng(seed)
    x = np.concatenate(
        [
            around(midpoints(grid)),
            around(grid),
            random_floats(seed),
            rng.uniform(-6.0, 6.0, 100_000).astype(np.float32),
            np.array([0.0, -0.0], np.float32),
        ]
    )
    x = x[np.abs(x) <= 6.0]
    want = x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    np.testing.assert_array_equal(formats.encode_e2m1(torch.from_numpy(x)).numpy(), want)


def test_e2m1_saturates() -> None:
    x = torch.tensor([6.01, 7.0, 3e38, torch.inf, -6.01, -torch.inf])
    assert formats.encode_e2m1(x).tolist() == [7, 7, 7, 7, 15, 15]


@pytest.mark.parametrize("encode", [formats.encode_e2m1, formats.encode_int4])
def test_four_bits_have_no_nan(encode) -> None:
    with pytest.raises(QuantizationError, match="NaN"):
        encode(torch.tensor([1.0, torch.nan]))


def test_e4m3_decodes_every_byte() -> None:
    want = ALL_BYTES.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    same_bits(formats.decode_e4m3(ALL_BYTES), want)


def test_e4m3_encodes_like_ml_dtypes(seed: int) -> None:
    grid = ALL_BYTES[:0x7F].numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    rng = np.random.default_rng(seed)
    x = np.concatenate(
        [
            around(midpoints(grid)),
            around(grid),
            random_floats(seed),
            rng.uniform(-448, 448, 100_000).astype(np.float32),
            (rng.uniform(-1, 1, 100_000) * 2.0**-6).astype(np.float32),
        ]
    )
    x = x[np.abs(x) <= 448.0]
    want = x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(formats.encode_e4m3(torch.from_numpy(x)).numpy(), want)


def test_e4m3_saturates_and_keeps_nan() -> None:
    x = torch.tensor([448.1, 464.0, 465.0, 1e30, torch.inf, -465.0, torch.nan])
    assert formats.encode_e4m3(x).tolist() == [0x7E] * 5 + [0xFE, 0x7F]


def test_e8m0_decodes_every_byte() -> None:
    want = ALL_BYTES.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    same_bits(formats.decode_e8m0(ALL_BYTES), want)


def exact_exponent(amax: float, rule: str) -> int:
    """The rule in exact rationals, clamped to what E8M0 holds."""
    exact = Fraction(float(amax))
    if exact == 0:
        return -127
    floor = exact.numerator.bit_length() - exact.denominator.bit_length()
    while Fraction(2) ** floor > exact:
        floor -= 1
    while Fraction(2) ** (floor + 1) <= exact:
        floor += 1
    if rule == "floor":
        exponent = floor - 2
    elif rule == "even":
        exponent = floor - 2 + (exact >= Fraction(7, 4) * Fraction(2) ** floor)
    elif rule == "ceil":
        exponent = floor - 2 + (exact > Fraction(2) ** floor)
    else:
        exponent = floor - 2 + (exact > Fraction(3, 2) * Fraction(2) ** floor)
    return max(-127, min(127, exponent))


@pytest.mark.parametrize("rule", formats.E8M0_RULES)
def test_e8m0_rules_are_exact(rule: str, seed: int) -> None:
    powers = 2.0 ** np.arange(-149, 128, 7)
    edges = np.concatenate([powers * factor for factor in (1.0, 1.5, 1.75, 1.25)])
    x = np.concatenate([around(edges), random_floats(seed, 3_000), np.zeros(1, np.float32)])
    x = np.abs(x[np.isfinite(x)])
    got = formats.encode_e8m0(torch.from_numpy(x), rule).numpy().astype(int) - 127
    want = [exact_exponent(value, rule) for value in x]
    # Below 2^-126 a float32 has no leading bit; every rule ends at the smallest scale there.
    np.testing.assert_array_equal(got, want)


def test_e8m0_refuses() -> None:
    with pytest.raises(QuantizationError, match="finite"):
        formats.encode_e8m0(torch.tensor([1.0, torch.inf]))
    with pytest.raises(QuantizationError, match="even, floor, rceil, ceil"):
        formats.encode_e8m0(torch.tensor([1.0]), "nearest")


def test_int4_rounds_to_even_and_clamps() -> None:
    x = torch.tensor([-9.0, -8.5, -7.5, -0.5, -0.0, 0.5, 1.5, 2.5, 6.5, 7.49, 7.5, 100.0])
    q = formats.decode_int4(formats.encode_int4(x))
    assert q.tolist() == [-8, -8, -8, 0, 0, 0, 2, 2, 6, 7, 7, 7]


def test_int4_decodes_every_code() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert formats.decode_int4(codes).tolist() == list(range(-8, 8))
    assert list(formats.INT4_LEVELS) == list(range(-8, 8))


def test_nibbles_even_element_low(seed: int) -> None:
    codes = torch.from_numpy(np.random.default_rng(seed).integers(0, 16, (5, 64), dtype=np.uint8))
    packed = formats.pack_nibbles(codes)
    assert packed.dtype == torch.uint8 and packed.shape == (5, 32)
    assert int(packed[2, 3]) == int(codes[2, 6]) | int(codes[2, 7]) << 4
    assert torch.equal(formats.unpack_nibbles(packed), codes)


@pytest.mark.parametrize("levels", [formats.E2M1_LEVELS, formats.INT4_LEVELS])
def test_level_pairs_hold_both_values(levels: tuple[float, ...]) -> None:
    pairs = formats.level_pairs(levels, torch.device("cpu")).view(torch.float32).view(256, 2)
    for byte in range(256):
        assert pairs[byte].tolist() == [levels[byte & 15], levels[byte >> 4]]


def test_an_unknown_format_lists_those_there_are() -> None:
    with pytest.raises(QuantizationError, match="nvfp4, mxfp4, int4-g128"):
        formats.block_format("nvfp5")
