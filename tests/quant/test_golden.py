"""Our NVFP4 and MXFP4 bytes against those other libraries write for the same weights.

Under each library's `LIBRARIES` rules scale bytes and codes are the same bytes. Where a library
does what no rule of ours does, the vectors it happens on are counted.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.oracles.agreement import OURS, THEIRS, record
from tests.quant.golden import ARRAYS, SETS, VERSIONS, differing, nibbles, signs, weight
from wmrt.quant import quantize
from wmrt.quant.formats import decode_e4m3, unpack_nibbles
from wmrt.quant.rules import LIBRARIES, Rules

# As the vectors name them.
NVFP4 = {"te": "transformer-engine", "flashinfer": "flashinfer", "torchao": "torchao",
         "compressed_tensors": "compressed-tensors", "modelopt": "modelopt"}  # fmt: skip
# Elements of the edge set in blocks of scale 0 for which a code is written all the same, and zeros
# whose sign differs: we write a block of zeros, or one that is lost, as plain zeros.
UNDER_ZERO_SCALE = {"te": 98, "flashinfer": 98}
SIGNS = {"te": 38, "flashinfer": 166, "torchao": 128}


def oracle(key: str, name: str, part: str) -> np.ndarray:
    """An oracle's array; vectors store it only where it differs from TransformerEngine's."""
    return ARRAYS.get(f"nv_{key}_{part}_{name}", ARRAYS[f"nv_te_{part}_{name}"])


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("library", NVFP4)
def test_nvfp4_bytes(library: str, name: str) -> None:
    q = quantize(weight(name), "nvfp4", rules=LIBRARIES[NVFP4[library]])
    blocks = q.scales.shape[1]  # the tail set is padded further than whole blocks
    scales = oracle(library, name, "scale")[:, :blocks]
    codes = oracle(library, name, "codes")[:, : blocks * 8]
    record(VERSIONS[library], "nvfp4", THEIRS, scales=(q.scales.numpy(), scales),
           codes=(nibbles(q.codes.numpy()), nibbles(codes)), sign=8)  # fmt: skip
    np.testing.assert_array_equal(q.scales.numpy(), scales)
    other = differing(q.codes.numpy(), codes)
    lost = np.repeat(scales == 0, 16, 1)
    edge = name == "edge"
    assert not (other & ~lost).any()
    assert other.sum() == (UNDER_ZERO_SCALE.get(library, 0) if edge else 0)
    assert signs(q.codes.numpy(), codes) == (SIGNS.get(library, 0) if edge else 0)


@pytest.mark.parametrize("name", SETS)
def test_our_nvfp4_differs_at_exact_ties_only(name: str) -> None:
    # Scale bytes are every library's, but for blocks of zeros and near them; 4 to 6 of 4096 codes,
    # each a tie in exact arithmetic, go the other way than where one multiplies by a reciprocal.
    q = quantize(weight(name), "nvfp4")
    blocks = q.scales.shape[1]
    scales = ARRAYS[f"nv_te_scale_{name}"][:, :blocks]
    np.testing.assert_array_equal(q.scales.numpy(), scales)
    codes = ARRAYS[f"nv_te_codes_{name}"][:, : blocks * 8]
    kept = np.repeat(q.scales.numpy() > 0, 16, 1)
    record(VERSIONS["te"], "nvfp4", OURS, scales=(q.scales.numpy(), scales), sign=8,
           codes=(nibbles(q.codes.numpy())[kept], nibbles(codes)[kept]))  # fmt: skip
    other = differing(q.codes.numpy(), codes) & kept
    assert other.sum() == {"w": 4, "wout": 6, "edge": 0, "tail": 0}[name]
    step = np.repeat(decode_e4m3(q.scales).double().numpy() * q.global_scale, 16, 1)
    wide = np.pad(ARRAYS[f"x_{name}"], ((0, 0), (0, blocks * 16 - q.shape[1])))
    quotient = np.abs(wide[other]) / step[other]
    middle = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    # Up to three float32 roundings separate two ways to form the quotient.
    assert (np.abs(quotient[:, None] - middle).min(1) <= 4 * 2.0**-24 * quotient).all()


@pytest.mark.parametrize("name", SETS)
def test_nvfp4_global_scale_is_a_multiplier(name: str) -> None:
    amax = ARRAYS[f"nv_amax_{name}"]
    q = quantize(weight(name), "nvfp4")
    assert q.global_scale == np.float32(amax) / np.float32(2688)
    # A compressed-tensors file holds the divisor 2688 / amax.
    divisor = float(ARRAYS[f"nv_ct_weight_global_scale_{name}"])
    assert q.global_scale * divisor == pytest.approx(1.0, rel=2**-22)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("library", ["te", "compressed_tensors"])
def test_nvfp4_dequantizes_to_the_same_values(library: str, name: str) -> None:
    x = ARRAYS[f"x_{name}"]
    q = quantize(weight(name), "nvfp4", rules=LIBRARIES[NVFP4[library]])
    theirs = ARRAYS[f"nv_{library}_dq_{name}"][:, : x.shape[1]]
    # One product with the global scale rounds on either side.
    np.testing.assert_allclose(q.dequantize().numpy(), theirs, rtol=2**-22, atol=0)


@pytest.mark.parametrize("name", ["w", "wout"])
def test_nvfp4_square_tiles(name: str) -> None:
    q = quantize(weight(name), "nvfp4", rules=Rules(division="reciprocal", tile_rows=16))
    scales, codes = (ARRAYS[f"nv_te_2d16x16_{part}_{name}"] for part in ("scale", "codes"))
    record(VERSIONS["te"], "nvfp4 16x16", THEIRS, scales=(q.scales.numpy(), scales),
           codes=(nibbles(q.codes.numpy()), nibbles(codes)))  # fmt: skip
    np.testing.assert_array_equal(q.scales.numpy(), scales)
    np.testing.assert_array_equal(q.codes.numpy(), codes)


@pytest.mark.parametrize("name", ["w", "wout"])
@pytest.mark.parametrize("top", [448, 256])
@pytest.mark.parametrize("error", ["MAE", "MSE"])
def test_nvfp4_codes_under_given_scales(error: str, top: int, name: str) -> None:
    # The scales are TransformerEngine's four-over-six choice.
    key = f"nv_te_4o6_{error}_{top}"
    scales = torch.from_numpy(ARRAYS[f"{key}_scale_{name}"])
    rules = Rules(division="reciprocal", nvfp4_span=6.0 * top)
    q = quantize(weight(name), "nvfp4", scales=scales, rules=rules)
    assert q.scales is scales
    np.testing.assert_array_equal(q.codes.numpy(), ARRAYS[f"{key}_codes_{name}"])


# Scale bytes of ggml's NVFP4 that differ, of how many above 248: it has no global scale and maps
# every block scale above 248 to 448; below, it rounds E4M3 ties up.
GGML = {"w": (82, 82), "wout": (2, 2), "edge": (11, 6), "tail": (11, 11)}


@pytest.mark.parametrize("name", SETS)
def test_ggml_nvfp4_is_for_decoding_only(name: str) -> None:
    ours = quantize(weight(name), "nvfp4").scales.numpy().astype(int)
    theirs = ARRAYS[f"nv_ggml_scale_{name}"].astype(int)[:, : ours.shape[1]]
    off, high = theirs != ours, ours >= 0x78
    assert (off.sum(), (off & high).sum()) == GGML[name]
    assert (theirs[high] == 0x7E).all() and set((theirs - ours)[off & ~high]) <= {1}
    codes = torch.from_numpy(ARRAYS[f"nv_ggml_codes_{name}"])
    assert (unpack_nibbles(codes) != 8).all()  # it writes no -0


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


MX = {"floor_numpy": Rules(mx_scale="floor"), "rceil_numpy": Rules(mx_scale="rceil"),
      "torchao_even": Rules(mx_scale="even"), "torchao_ceil": Rules(mx_scale="ceil"),
      "compressed_tensors_even": LIBRARIES["compressed-tensors"],
      "modelopt_rceil": LIBRARIES["modelopt"], "ggml_floor": LIBRARIES["ggml"]}  # fmt: skip
# Zeros whose sign differs: a block of -0 becomes +0 here; ModelOpt turns +0 to -0; ggml has no -0.
MX_SIGNS = {
    **{(key, "edge"): 128 for key in MX if key != "compressed_tensors_even"},
    ("modelopt_rceil", "edge"): 464, ("modelopt_rceil", "tail"): 120,
    ("ggml_floor", "w"): 160, ("ggml_floor", "wout"): 257, ("ggml_floor", "edge"): 135,
    ("ggml_floor", "tail"): 8,
}  # fmt: skip


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("library", MX)
def test_mxfp4_bytes(library: str, name: str) -> None:
    q = quantize(weight(name), "mxfp4", rules=MX[library])
    ours, theirs = q.scales.numpy(), ARRAYS[f"mx_{library}_scale_{name}"]
    off = ours != theirs
    # Four blocks of float32 subnormals: the smallest scale, where ggml's byte wraps around to 251.
    assert off.sum() == (4 if (library, name) == ("ggml_floor", "edge") else 0)
    assert (ours[off] == 0).all() and (theirs[off] == 251).all()
    codes = ARRAYS[f"mx_{library}_codes_{name}"]
    oracle_name, _, rule = library.rpartition("_")
    if rule == "numpy":
        oracle_name, rule = rule, oracle_name
    record(VERSIONS[oracle_name], f"mxfp4 {rule}", THEIRS, scales=(ours, theirs), sign=8,
           codes=(nibbles(q.codes.numpy()), nibbles(codes)))  # fmt: skip
    assert not (differing(q.codes.numpy(), codes) & np.repeat(~off, 32, 1)).any()
    assert signs(q.codes.numpy(), codes) == MX_SIGNS.get((library, name), 0)


# Block maxima one float32 ulp around 2^k x {1, 1.5, 1.75, 4, 6, 7}: scale bytes of 72 that are one
# off because an exponent came from log2 in floating point. Ours comes from the bits.
OFF_BY_ONE = {
    ("rceil", "rceil_fi"): 0, ("floor", "floor_fi"): 0, ("floor", "torchao_floor"): 0,
    ("rceil", "torchao_rceil"): -4, ("even", "torchao_even"): 0, ("ceil", "torchao_ceil"): 0,
    ("even", "compressed_tensors_even"): 0, ("rceil", "modelopt_rceil"): -4,
    ("floor", "ggml_floor"): 5, ("floor", "gfloat"): 0, ("rceil", "te_pow2"): -4,
    ("rceil", "numpy_rceil"): 0,
}  # fmt: skip


@pytest.mark.parametrize(("rule", "library"), OFF_BY_ONE)
def test_mxfp4_at_the_boundaries_of_the_exponent(rule: str, library: str) -> None:
    q = quantize(weight("mxb"), "mxfp4", rules=Rules(mx_scale=rule))
    theirs = ARRAYS[f"mx_{library}_scale_mxb"]
    name = next(key for key in VERSIONS if library.startswith(key) or library.endswith(key))
    record(VERSIONS[name], f"mxfp4 {rule}, boundaries", THEIRS, scales=(q.scales.numpy(), theirs))
    off = theirs.astype(int) - q.scales.numpy()
    count = OFF_BY_ONE[rule, library]
    assert off.sum() == count and np.abs(off).sum() == abs(count)
    codes = ARRAYS.get(f"mx_{library}_codes_mxb")
    if codes is not None:
        np.testing.assert_array_equal(q.codes.numpy(), codes)
