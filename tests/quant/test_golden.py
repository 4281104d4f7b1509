"""Our bytes against those other libraries write for the same weights.

Scale bytes are compared exactly. A nibble may differ where the exact quotient is a tie to within
float32 rounding: libraries divide by the scale or multiply by its reciprocal. +0 equals -0.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.quant.golden import ARRAYS, differing, nibbles
from wmrt.quant import quantize
from wmrt.quant.activations import quantize_int8
from wmrt.quant.tensor import QuantizedTensor

SETS = ("w", "wout", "edge", "tail")
MIDPOINTS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
# Up to three float32 roundings separate two ways to form the quotient.
TIE = 4 * 2.0**-24


def weight(name: str) -> torch.Tensor:
    return torch.from_numpy(ARRAYS[f"x_{name}"])


def steps(q: QuantizedTensor) -> np.ndarray:
    """The exact step of every element, float64[N, K']."""
    scales = q.scales.numpy()
    if q.format == "nvfp4":
        byte = scales.astype(int)
        exponent, mantissa = byte >> 3, byte & 7
        value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
        value = value * q.global_scale
    else:
        value = 2.0 ** (scales.astype(float) - 127)
    return np.repeat(value, q.spec.block, 1)


def at_a_tie(q: QuantizedTensor, x: np.ndarray) -> np.ndarray:
    """Which elements' exact quotient lies on a rounding boundary, bool[N, K']."""
    step = steps(q)
    wide = np.zeros(step.shape)
    wide[:, : x.shape[1]] = np.abs(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = wide / step
    distance = np.abs(quotient[..., None] - MIDPOINTS).min(-1)
    return np.asarray(distance <= TIE * quotient)


def oracle(key: str, name: str, part: str) -> np.ndarray:
    """An oracle's array; vectors store it only where it differs from TransformerEngine's."""
    return ARRAYS.get(f"nv_{key}_{part}_{name}", ARRAYS[f"nv_te_{part}_{name}"])


# The smallest scale byte each library writes for a block that holds anything, by its clamp.
CLAMPS = {"te": 0x00, "flashinfer": 0x00, "compressed_tensors": 0x01, "modelopt": 0x01,
          "torchao": 0x08}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("library", CLAMPS)
def test_nvfp4(library: str, name: str) -> None:
    q = quantize(weight(name), "nvfp4")
    blocks = q.scales.shape[1]  # the tail set is padded further than whole blocks
    theirs = oracle(library, name, "scale")[:, :blocks]
    ours = q.scales.numpy()
    plain = ours >= CLAMPS[library]
    np.testing.assert_array_equal(ours[plain], theirs[plain])
    bad = differing(q.codes.numpy(), oracle(library, name, "codes")[:, : blocks * 8])
    written = np.repeat(plain & (ours > 0), 16, 1)
    assert not (bad & written & ~at_a_tie(q, ARRAYS[f"x_{name}"])).any()
    assert bad[written].mean() < (0.005 if name != "edge" else 0.10)


def test_nvfp4_equals_compressed_tensors_where_it_stores_the_same_divisor() -> None:
    q = quantize(weight("w"), "nvfp4")
    assert not differing(q.codes.numpy(), ARRAYS["nv_compressed_tensors_codes_w"]).any()
    # Its file holds the divisor 2688 / amax, ours the multiplier.
    divisor = float(ARRAYS["nv_ct_weight_global_scale_w"])
    assert q.global_scale * divisor == pytest.approx(1.0, rel=2**-22)


@pytest.mark.parametrize("name", SETS)
def test_nvfp4_global_scale_is_a_multiplier(name: str) -> None:
    amax = float(ARRAYS[f"nv_amax_{name}"])
    assert quantize(weight(name), "nvfp4").global_scale == np.float32(amax) / np.float32(2688)


@pytest.mark.parametrize("name", SETS)
def test_nvfp4_dequantizes_like_transformer_engine(name: str) -> None:
    x = ARRAYS[f"x_{name}"]
    q = quantize(weight(name), "nvfp4")
    theirs = ARRAYS[f"nv_te_dq_{name}"][:, : x.shape[1]]
    same = ~differing(q.codes.numpy(), oracle("te", name, "codes")[:, : q.codes.shape[1]])
    same = same[:, : x.shape[1]]
    # One product by the global scale rounds on either side.
    np.testing.assert_allclose(q.dequantize().numpy()[same], theirs[same], rtol=2**-22, atol=0)


def test_nvfp4_edge_rows_follow_our_rules() -> None:
    names = list(ARRAYS["names_edge"])
    q = quantize(weight("edge"), "nvfp4")
    rows = {row.split(" ")[0]: i for i, row in enumerate(names)}
    for row in ("zeros", "neg_zeros", "f32_subnormals"):
        assert not q.scales[rows[row]].any() and not q.codes[rows[row]].any()
    tiny = rows["tiny_blocks_subnormal_or_underflowing_scales"]
    assert q.scales[tiny].tolist() == [0, 0, 0, 1, 1, 2, 2, 4]
    assert not q.codes[tiny, :24].any()
    # Three tiny blocks and the eight blocks of subnormals held something and are zeros now.
    assert q.zeroed_blocks == 11


MX = [("floor", "floor_numpy"), ("rceil", "rceil_numpy"), ("even", "torchao_even"),
      ("even", "compressed_tensors_even"), ("ceil", "torchao_ceil")]  # fmt: skip


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(("rule", "library"), MX)
def test_mxfp4(rule: str, library: str, name: str) -> None:
    q = quantize(weight(name), "mxfp4", mx_rule=rule)
    np.testing.assert_array_equal(q.scales.numpy(), ARRAYS[f"mx_{library}_scale_{name}"])
    assert not differing(q.codes.numpy(), ARRAYS[f"mx_{library}_codes_{name}"]).any()


@pytest.mark.parametrize(
    ("rule", "library"),
    [("floor", "floor_fi"), ("rceil", "rceil_fi"), ("even", "torchao_even"),
     ("ceil", "torchao_ceil")],
)  # fmt: skip
def test_mxfp4_at_the_boundaries_of_the_exponent(rule: str, library: str) -> None:
    q = quantize(weight("mxb"), "mxfp4", mx_rule=rule)
    np.testing.assert_array_equal(q.scales.numpy(), ARRAYS[f"mx_{library}_scale_mxb"])


@pytest.mark.parametrize("name", ["w", "edge"])
def test_int4_g128(name: str) -> None:
    q = quantize(weight(name), "int4-g128")
    theirs = ARRAYS[f"i4_compressed_tensors_g128_scale_{name}"]
    held = ARRAYS[f"x_{name}"].any(1) & (theirs[:, 0] >= 2.0**-14)  # a normal float16 scale
    np.testing.assert_array_equal(q.scales.numpy()[held], theirs.astype(np.float16)[held])
    # Theirs keeps the float32 scale, up to 2^-11 away: a code moves only where that crosses a
    # rounding boundary, at most 8 x 2^-11 of a step off.
    codes = ARRAYS[f"i4_compressed_tensors_g128_codes_{name}"]
    mine, other = nibbles(q.codes.numpy())[held], nibbles(codes)[held]
    quotient = ARRAYS[f"x_{name}"][held] / theirs[held].astype(np.float64)
    tie = np.abs(quotient - np.floor(quotient) - 0.5) <= 8 * 2.0**-11 + TIE
    np.testing.assert_array_equal(mine[~tie], other[~tie])
    assert np.abs(mine.astype(int) - other).max() <= 1


def test_a8_per_token() -> None:
    codes, scales = quantize_int8(torch.from_numpy(ARRAYS["a8_x"]), group=128)
    held = ARRAYS["a8_x"].any(1)  # for a row of zeros the vectors store an epsilon, we store 0
    assert scales.numpy()[~held].tolist() == [[0.0]]
    np.testing.assert_array_equal(scales.numpy()[held], ARRAYS["a8_sym_127_scale"][held])
    np.testing.assert_array_equal(codes.numpy(), ARRAYS["a8_sym_127_q"])
