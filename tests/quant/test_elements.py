"""Single numbers in 4 and 8 bits against ml_dtypes, torch's own narrow floats, and definitions."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.quant.inputs import around, midpoints, random_floats, same_bits
from wmrt.core.errors import QuantizationError
from wmrt.quant import elements

ALL_BYTES = torch.arange(256, dtype=torch.uint8)


def test_e2m1_decodes_every_code() -> None:
    codes = np.arange(16, dtype=np.uint8)
    want = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    same_bits(elements.decode_e2m1(torch.from_numpy(codes)), want)


def test_e2m1_encodes_like_ml_dtypes(seed: int) -> None:
    grid = np.array(elements.E2M1_VALUES, np.float32)
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
    np.testing.assert_array_equal(elements.encode_e2m1(torch.from_numpy(x)).numpy(), want)


def test_e2m1_saturates() -> None:
    x = torch.tensor([6.01, 7.0, 3e38, torch.inf, -6.01, -torch.inf])
    assert elements.encode_e2m1(x).tolist() == [7, 7, 7, 7, 15, 15]


@pytest.mark.parametrize(
    "encode", [elements.encode_e2m1, elements.encode_int4, elements.encode_int8]
)
def test_integers_and_four_bits_have_no_nan(encode: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(QuantizationError, match="NaN"):
        encode(torch.tensor([1.0, torch.nan]))


def test_e4m3_decodes_every_byte() -> None:
    want = ALL_BYTES.numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    same_bits(elements.decode_e4m3(ALL_BYTES), want)


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
    np.testing.assert_array_equal(elements.encode_e4m3(torch.from_numpy(x)).numpy(), want)


def test_e4m3_saturates_and_keeps_nan() -> None:
    x = torch.tensor([448.1, 464.0, 465.0, 1e30, torch.inf, -465.0, torch.nan])
    assert elements.encode_e4m3(x).tolist() == [0x7E] * 5 + [0xFE, 0x7F]


def test_int4_rounds_to_even_and_clamps() -> None:
    x = torch.tensor([-9.0, -8.5, -7.5, -0.5, -0.0, 0.5, 1.5, 2.5, 6.5, 7.49, 7.5, 100.0])
    q = elements.decode_int4(elements.encode_int4(x))
    assert q.tolist() == [-8, -8, -8, 0, 0, 0, 2, 2, 6, 7, 7, 7]


def test_int4_decodes_every_code() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert elements.decode_int4(codes).tolist() == list(range(-8, 8))
    assert list(elements.INT4_LEVELS) == list(range(-8, 8))


@pytest.mark.parametrize("levels", [elements.E2M1_LEVELS, elements.INT4_LEVELS])
def test_level_pairs_hold_both_values(levels: tuple[float, ...]) -> None:
    pairs = elements.level_pairs(levels, torch.device("cpu")).view(torch.float32).view(256, 2)
    for byte in range(256):
        assert pairs[byte].tolist() == [levels[byte & 15], levels[byte >> 4]]


def e4m3_inputs(seed: int) -> np.ndarray:
    grid = ALL_BYTES[:0x7F].numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    x = np.concatenate([around(midpoints(grid)), around(grid), random_floats(seed)])
    return x[np.abs(x) <= 448.0]


def test_e4m3_is_torchs_own(seed: int) -> None:
    want = ALL_BYTES.view(torch.float8_e4m3fn).float()
    same_bits(elements.decode_e4m3(ALL_BYTES), want.numpy())
    x = torch.from_numpy(e4m3_inputs(seed))
    assert torch.equal(elements.encode_e4m3(x), x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_e4m3_keeps_signs() -> None:
    x = torch.tensor([-0.0, -(2.0**-11), -torch.nan, -torch.inf])
    assert elements.encode_e4m3(x).tolist() == [0x80, 0x80, 0xFF, 0xFE]


def test_e2m1_midpoints_by_rule() -> None:
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    both = torch.cat([x, -x])
    assert elements.encode_e2m1(both)[:7].tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert elements.encode_e2m1(both)[7:].tolist() == [8, 10, 10, 12, 12, 14, 14]
    down = elements.encode_e2m1(both, ties="zero")
    assert down[:7].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert down[7:].tolist() == [8, 9, 10, 11, 12, 13, 14]
    with pytest.raises(QuantizationError, match="'up'; use even or zero"):
        elements.encode_e2m1(x, ties="up")


def test_e2m1_rules_agree_off_the_midpoints(seed: int) -> None:
    x = torch.from_numpy(around(midpoints(np.array(elements.E2M1_VALUES))))
    x = torch.cat([x, torch.from_numpy(random_floats(seed))])
    middle = (x.abs().unsqueeze(-1) == torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])).any(-1)
    assert torch.equal(elements.encode_e2m1(x)[~middle], elements.encode_e2m1(x, "zero")[~middle])


def test_int4_halves_up() -> None:
    x = torch.tensor([-9.0, -8.5, -7.5, -0.5, 0.5, 1.5, 2.5, 7.5, torch.inf, -torch.inf])
    q = elements.decode_int4(elements.encode_int4(x, ties="up"))
    assert q.tolist() == [-8, -8, -7, 0, 1, 2, 3, 7, 7, -8]
    with pytest.raises(QuantizationError, match="'zero'; use even or up"):
        elements.encode_int4(x, ties="zero")


@pytest.mark.parametrize("lowest", [-127, -128])
def test_int8(lowest: int) -> None:
    x = torch.tensor([-1e9, -128.5, -127.5, -0.5, -0.0, 0.5, 1.5, 126.5, 127.5, torch.inf])
    codes = elements.encode_int8(x, lowest)
    assert codes.dtype == torch.uint8
    want = [lowest, lowest, max(lowest, -128), 0, 0, 0, 2, 126, 127, 127]
    assert elements.decode_int8(codes).tolist() == want
    every = elements.decode_int8(ALL_BYTES)
    assert every.tolist() == [*range(128), *range(-128, 0)]
    assert torch.equal(elements.encode_int8(every, -128), ALL_BYTES)
