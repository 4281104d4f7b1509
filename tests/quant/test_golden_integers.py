"""Our INT4 and INT8 numbers against those other libraries write for the same weights.

The vectors keep INT4 scales in float32, ours are stored as float16: compared are the float32 scales
of each rule, and the codes under them; then what `quantize` stores against both.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.oracles.agreement import THEIRS, record
from tests.quant.golden import ARRAYS, VERSIONS, nibbles, weight
from wmrt.quant import quantize
from wmrt.quant.activations import quantize_int8, quantize_tokens
from wmrt.quant.block_scales import blocks_of, int4_scales, int4_zero_points
from wmrt.quant.formats import FORMATS, decode_int4, encode_int4, unpack_nibbles
from wmrt.quant.rules import LIBRARIES, Rules

SETS = ("w", "edge")
GROUPS = (32, 128)


def symmetric(group: int, name: str, library: str) -> tuple[Tensor, Tensor, Rules]:
    spec, rules = FORMATS[f"int4-g{group}"], LIBRARIES[library]
    blocks = blocks_of(weight(name), spec)
    return blocks, int4_scales(blocks, spec, rules), rules


def under(quotients: Tensor, rules: Rules) -> np.ndarray:
    """Codes uint8[N, K] of blocks divided by their scale; 8 where the scale is 0."""
    kept = torch.where(quotients.isfinite(), quotients, 0.0)
    return encode_int4(kept, rules.int4_ties).flatten(-2).numpy()


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("group", GROUPS)
def test_compressed_tensors(group: int, name: str) -> None:
    blocks, scales, rules = symmetric(group, name, "compressed-tensors")
    theirs = ARRAYS[f"i4_compressed_tensors_g{group}_scale_{name}"]
    zero = scales.numpy() == 0
    np.testing.assert_array_equal(scales.numpy()[~zero], theirs[~zero])
    assert (theirs[zero] == np.finfo(np.float32).eps).all()  # an epsilon where ours stays 0
    codes = under(blocks / scales.unsqueeze(-1), rules)
    want = nibbles(ARRAYS[f"i4_compressed_tensors_g{group}_codes_{name}"])
    record(VERSIONS["compressed_tensors"], f"int4-g{group}", THEIRS, codes=(codes, want),
           scales=(scales.numpy()[~zero], theirs[~zero]))  # fmt: skip
    np.testing.assert_array_equal(codes, want)
    # The checkpoint tensor has eight codes in an int32, the first in the lowest bits.
    packed = ARRAYS[f"i4_ct_g{group}_weight_packed_i32_{name}"].view(np.uint8)
    np.testing.assert_array_equal(nibbles(packed), want)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("group", GROUPS)
def test_zero_points(group: int, name: str) -> None:
    spec = FORMATS[f"int4-g{group}-zp"]
    blocks = blocks_of(weight(name), spec)
    scales = int4_scales(blocks, spec)
    key = f"compressed_tensors_asym_g{group}"
    theirs, zero = ARRAYS[f"i4_{key}_scale_{name}"], scales.numpy() == 0
    np.testing.assert_array_equal(scales.numpy()[~zero], theirs[~zero])
    assert (theirs[zero] == np.finfo(np.float32).eps).all()
    points = int4_zero_points(blocks, scales)
    want_points = ARRAYS[f"i4_ct_asym_g{group}_zp_{name}"] + 8
    np.testing.assert_array_equal(points.numpy()[~zero], want_points[~zero])
    quotients = torch.nan_to_num(blocks / scales.unsqueeze(-1))
    shifted = quotients + (points.unsqueeze(-1) - 8.0)
    codes = encode_int4(shifted).flatten(-2).numpy()
    kept = np.repeat(~zero, group, 1)
    want = nibbles(ARRAYS[f"i4_{key}_codes_{name}"])
    record(VERSIONS["compressed_tensors"], f"int4-g{group}-zp", THEIRS,
           codes=(codes[kept], want[kept]),
           scales=(scales.numpy()[~zero], theirs[~zero]))  # fmt: skip
    np.testing.assert_array_equal(codes[kept], want[kept])
    # Zero points lie along the rows, eight to an int32.
    packed = ARRAYS[f"i4_ct_asym_g{group}_zp_packed_i32_{name}"]
    rows = np.arange(len(want_points))
    spread = (packed[rows // 8] >> (4 * (rows % 8))[:, None]) & 15
    np.testing.assert_array_equal(spread[~zero], want_points[~zero])
    weights = ARRAYS[f"i4_ct_asym_g{group}_weight_packed_i32_{name}"].view(np.uint8)
    np.testing.assert_array_equal(nibbles(weights), want)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("group", GROUPS)
def test_modelopt(group: int, name: str) -> None:
    blocks, scales, rules = symmetric(group, name, "modelopt")
    inverse = ARRAYS[f"i4_modelopt_g{group}_scale_{name}"]  # 7 / amax, and it multiplies by that
    held = np.isfinite(inverse) & (inverse > 0)
    np.testing.assert_allclose(1 / scales.numpy()[held], inverse[held], rtol=2**-22)
    codes = under(blocks / scales.unsqueeze(-1), rules)
    multiplied = under(blocks * torch.from_numpy(inverse).unsqueeze(-1), rules)
    want = nibbles(ARRAYS[f"i4_modelopt_g{group}_codes_{name}"])
    kept = np.repeat(held, group, 1)
    record(VERSIONS["modelopt"], f"int4-g{group}", THEIRS, codes=(multiplied[kept], want[kept]))
    np.testing.assert_array_equal(multiplied[kept], want[kept])
    assert (codes != want)[kept].sum() == MODELOPT_TIES[group, name]


# Codes that go the other way where x / s is a tie and x times 7 / amax is not.
MODELOPT_TIES = {(32, "w"): 0, (128, "w"): 2, (32, "edge"): 0, (128, "edge"): 0}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("group", GROUPS)
def test_onnxruntime(group: int, name: str) -> None:
    blocks, scales, rules = symmetric(group, name, "onnxruntime")
    theirs = ARRAYS[f"i4_ort_sym_g{group}_scale_{name}"]
    np.testing.assert_array_equal(scales.numpy(), theirs)
    inverse = 1.0 / scales
    codes = under(blocks * inverse.unsqueeze(-1), rules)
    # A row of float32 subnormals has a scale whose reciprocal is infinite: theirs saturates.
    over = inverse.isinf() & (scales != 0)
    kept = np.repeat(~over.numpy(), group, 1)
    want = nibbles(ARRAYS[f"i4_ort_sym_g{group}_codes_{name}"])
    record(VERSIONS["ort"], f"int4-g{group}", THEIRS, scales=(scales.numpy(), theirs),
           codes=(codes[kept], want[kept]))  # fmt: skip
    np.testing.assert_array_equal(codes[kept], want[kept])
    assert (~kept).sum() == (0 if name == "w" else 128)


@pytest.mark.parametrize("name", SETS)
def test_ggml_q4_0(name: str) -> None:
    # ggml takes the first of two equal magnitudes, we the negative one, and its scale is float16.
    blocks, scales, rules = symmetric(32, name, "ggml")
    theirs = ARRAYS[f"i4_q4_0_scale_f16_{name}"]
    ours = scales.numpy().astype(np.float16)
    turned = (ours == -theirs) & (ours != 0)
    np.testing.assert_array_equal(ours[~turned], theirs[~turned])
    codes = under(blocks * (1.0 / scales).unsqueeze(-1), rules)
    kept = np.repeat((ours != 0) & ~turned, 32, 1)
    want = nibbles(ARRAYS[f"i4_q4_0_codes_{name}"])
    record(VERSIONS["ggml"], "int4-g32", THEIRS, scales=(ours, theirs),
           codes=(codes[kept], want[kept]))  # fmt: skip
    np.testing.assert_array_equal(codes[kept], want[kept])
    assert turned.sum() == (0 if name == "w" else 5)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("rule", ["amax/7.5", "amax/7", "signed-max"])
def test_what_is_stored_is_within_float16_of_it(rule: str, group: int) -> None:
    rules = Rules(int4_scale=rule)
    spec = FORMATS[f"int4-g{group}"]
    q = quantize(weight("w"), spec.name, rules=rules)
    scales = int4_scales(blocks_of(weight("w"), spec), spec, rules)
    assert torch.equal(q.scales, scales.half())
    # A float16 scale is up to 2^-11 away, so a quotient up to 8 x 2^-11 of a step: a code moves by
    # one, and only there.
    quotients = blocks_of(weight("w"), spec) / scales.unsqueeze(-1)
    moved = encode_int4(quotients).flatten(-2) != unpack_nibbles(q.codes)
    tie = (quotients - quotients.floor() - 0.5).abs().flatten(-2)
    assert (tie[moved] <= 8 * 2.0**-11 + 2.0**-20).all()
    exact = quotients.clamp(-8, 7).flatten(-2)
    assert (decode_int4(unpack_nibbles(q.codes)) - exact).abs().max() <= 0.5 + 8 * 2.0**-11 + 2e-6


@pytest.mark.parametrize("rule", ["amax/127", "amax/127.5"])
def test_a8_per_token(rule: str) -> None:
    key = "ct_127p5" if rule == "amax/127.5" else "sym_127"
    x = torch.from_numpy(ARRAYS["a8_x"])
    codes, scales = quantize_tokens(x, "int8-token", Rules(int8_scale=rule))
    held = ARRAYS["a8_x"].any(1)  # for a row of zeros the vectors store an epsilon, we store 0
    assert scales.numpy()[~held].tolist() == [[0.0]]
    np.testing.assert_array_equal(scales.numpy()[held], ARRAYS[f"a8_{key}_scale"][held])
    record(VERSIONS["compressed_tensors" if rule == "amax/127.5" else "numpy"], "int8-token",
           THEIRS, scales=(scales.numpy()[held], ARRAYS[f"a8_{key}_scale"][held]),
           codes=(codes.numpy(), ARRAYS[f"a8_{key}_q"]))  # fmt: skip
    np.testing.assert_array_equal(codes.numpy(), ARRAYS[f"a8_{key}_q"])
    if rule == "amax/127":
        grouped, group_scales = quantize_int8(x, group=128)
        assert torch.equal(grouped.float(), codes) and torch.equal(group_scales, scales)
