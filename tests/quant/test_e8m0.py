"""E8M0 scales against ml_dtypes, torch's own dtype, and the rules in exact rationals."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.quant.inputs import around, random_floats, same_bits
from wmrt.core.errors import QuantizationError
from wmrt.quant import e8m0

ALL_BYTES = torch.arange(256, dtype=torch.uint8)


def test_e8m0_decodes_every_byte() -> None:
    want = ALL_BYTES.numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    same_bits(e8m0.decode_e8m0(ALL_BYTES), want)


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


@pytest.mark.parametrize("rule", e8m0.E8M0_RULES)
def test_e8m0_rules_are_exact(rule: str, seed: int) -> None:
    powers = 2.0 ** np.arange(-149, 128, 7)
    edges = np.concatenate([powers * factor for factor in (1.0, 1.5, 1.75, 1.25)])
    x = np.concatenate([around(edges), random_floats(seed, 3_000), np.zeros(1, np.float32)])
    x = np.abs(x[np.isfinite(x)])
    got = e8m0.encode_e8m0(torch.from_numpy(x), rule).numpy().astype(int) - 127
    want = [exact_exponent(value, rule) for value in x]
    # Below 2^-126 a float32 has no leading bit; every rule ends at the smallest scale there.
    np.testing.assert_array_equal(got, want)


def test_e8m0_refuses() -> None:
    with pytest.raises(QuantizationError, match="finite"):
        e8m0.encode_e8m0(torch.tensor([1.0, torch.inf]))
    with pytest.raises(QuantizationError, match="even, floor, rceil, ceil"):
        e8m0.encode_e8m0(torch.tensor([1.0]), "nearest")


def test_e8m0_is_torchs_own() -> None:
    same_bits(e8m0.decode_e8m0(ALL_BYTES), ALL_BYTES.view(torch.float8_e8m0fnu).float().numpy())


def test_zero_and_the_sign_are_ours_to_define() -> None:
    # Of 0 torch's cast makes 0x00 and ml_dtypes 0xFF, NaN; a sign is lost in both.
    for rule in e8m0.E8M0_RULES:
        assert e8m0.encode_e8m0(torch.tensor([0.0, -0.0, -4.0, 4.0]), rule).tolist() == [
            0, 0, 127, 127
        ]  # fmt: skip


@pytest.mark.parametrize("rule", e8m0.E8M0_RULES)
def test_both_ends_of_the_range(rule: str) -> None:
    ends = torch.tensor([1e-45, 2.0**-126, torch.finfo(torch.float32).max])
    low, still_low, high = e8m0.encode_e8m0(ends, rule).tolist()
    assert (low, still_low) == (0, 0) and high == {"floor": 252}.get(rule, 253)
