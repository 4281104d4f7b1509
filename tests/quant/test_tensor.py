"""`QuantizedTensor`: what loading accepts, and every way stored tensors can be wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant import QuantizedTensor, quantize
from wmrt.quant.formats import FORMATS
from wmrt.quant.tensor import layout

Stored = dict[str, Tensor]
NAMES = tuple(FORMATS)


def packed(name: str, seed: int, shape: tuple[int, int] = (6, 256)) -> QuantizedTensor:
    rng = np.random.default_rng(seed)
    return quantize(torch.from_numpy(rng.standard_normal(shape).astype(np.float32)), name)


def load(q: QuantizedTensor, stored: Stored) -> QuantizedTensor:
    return QuantizedTensor.from_tensors(q.format, q.shape, stored)


@pytest.mark.parametrize("shape", [(6, 256), (1, 1), (3, 40), (2, 129)])
@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name: str, shape: tuple[int, int], seed: int) -> None:
    q = packed(name, seed, shape)
    back = load(q, q.tensors())
    assert back.global_scale == q.global_scale and back.shape == q.shape
    assert torch.equal(back.dequantize(), q.dequantize())
    assert back.codes.data_ptr() == q.codes.data_ptr()  # kept, not copied


def test_what_is_stored(seed: int) -> None:
    q = packed("nvfp4", seed)
    stored = q.tensors()
    assert set(stored) == {"codes", "scales", "global_scale"}
    assert stored["codes"].dtype == stored["scales"].dtype == torch.uint8
    assert stored["global_scale"].dtype == torch.float32 and stored["global_scale"].shape == ()
    assert q.nbytes == 6 * 128 + 6 * 16 + 4
    assert packed("mxfp4", seed).nbytes == 6 * 128 + 6 * 8
    int4 = packed("int4-g128", seed)
    assert int4.nbytes == 6 * 128 + 6 * 2 * 2 and int4.scales.dtype == torch.float16
    assert set(int4.tensors()) == {"codes", "scales"}
    shifted = packed("int4-g128-zp", seed)
    assert shifted.nbytes == int4.nbytes + 6 * 2
    assert set(shifted.tensors()) == {"codes", "scales", "zero_points"}
    assert packed("fp8-channel", seed).nbytes == 6 * 256 + 6 * 4
    assert packed("fp8-tensor", seed).nbytes == 6 * 256 + 4


@pytest.mark.parametrize("name", NAMES)
def test_layout_is_what_is_stored(name: str, seed: int) -> None:
    for shape in [(6, 256), (1, 1), (3, 41)]:
        q = packed(name, seed, shape)
        stored = {key: (tuple(t.shape), t.dtype) for key, t in q.tensors().items()}
        assert stored == layout(FORMATS[name], shape)


def refuse(name: str, seed: int, change: Callable[[Stored], object], match: str) -> None:
    q = packed(name, seed)
    stored = {key: tensor.clone() for key, tensor in q.tensors().items()}
    change(stored)
    with pytest.raises(QuantizationError, match=match):
        load(q, stored)


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str, seed: int) -> None:
    for key in packed(name, seed).tensors():
        refuse(name, seed, lambda s, key=key: s.pop(key), f"missing: {key}, unexpected: none")
    refuse(name, seed, lambda s: s.update(zeros=s["codes"]), "unexpected: zeros")


def test_a_format_without_global_scale_takes_none(seed: int) -> None:
    one = torch.tensor(1.0)
    refuse("mxfp4", seed, lambda s: s.update(global_scale=one), "unexpected: global_scale")


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_types(name: str, seed: int) -> None:
    refuse(name, seed, lambda s: s.update(codes=s["codes"][:, :-1]), r"codes .* must be")
    refuse(name, seed, lambda s: s.update(scales=s["scales"].repeat(1, 2)), r"scales .* must be")
    refuse(name, seed, lambda s: s.update(scales=s["scales"].flatten()), r"scales .* must be")
    refuse(name, seed, lambda s: s.update(scales=s["scales"][:-1]), r"scales .* must be")
    refuse(name, seed, lambda s: s.update(codes=s["codes"].to(torch.int8)), r"torch\.int8")
    refuse(name, seed, lambda s: s.update(scales=s["scales"].to(torch.bfloat16)), r"bfloat16")
    refuse(name, seed, lambda s: s.update(codes=s["scales"], scales=s["codes"]), "must be")


def test_tensors_of_another_format(seed: int) -> None:
    nv, mx = packed("nvfp4", seed), packed("mxfp4", seed)
    with pytest.raises(QuantizationError, match="missing: global_scale"):
        load(nv, mx.tensors())
    with pytest.raises(QuantizationError, match="unexpected: global_scale"):
        load(mx, nv.tensors())


@pytest.mark.parametrize("factor", [0.0, -1.0, torch.nan, torch.inf])
def test_global_scale_values(factor: float, seed: int) -> None:
    refuse("nvfp4", seed, lambda s: s["global_scale"].fill_(factor), "positive and finite")


@pytest.mark.parametrize(
    ("name", "value"),
    [("nvfp4", 0x7F), ("nvfp4", 0xFF), ("nvfp4", 0xB8), ("mxfp4", 0xFF),
     ("int4-g128", float("nan")), ("int4-g128", float("inf")), ("int4-g128-zp", -0.5)],
)  # fmt: skip
def test_scale_values(name: str, value: float, seed: int) -> None:
    def change(stored: Stored) -> None:
        stored["scales"][4, 1] = value

    refuse(name, seed, change, "the first at row 4, block 1")


@pytest.mark.parametrize("name", ["fp8-channel", "int8-channel", "fp8-tensor"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -1.0])
def test_row_scale_values(name: str, value: float, seed: int) -> None:
    def change(stored: Stored) -> None:
        stored["scales"][-1, 0] = value

    row = 0 if name == "fp8-tensor" else 5
    refuse(name, seed, change, f"finite and not negative; 1 are not, the first at row {row}")


def test_a_negative_scale_of_symmetric_int4_is_kept(seed: int) -> None:
    q = packed("int4-g64", seed)
    stored = {key: tensor.clone() for key, tensor in q.tensors().items()}
    stored["scales"][0, 0] *= -1
    assert torch.equal(load(q, stored).dequantize()[0, :64], -q.dequantize()[0, :64])


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("name", ["fp8-tensor", "fp8-channel"])
def test_codes_that_are_nan(name: str, code: int, seed: int) -> None:
    def change(stored: Stored) -> None:
        stored["codes"][2, 77] = code

    refuse(name, seed, change, r"NaN, the first at \[2, 77\]")


def test_every_int8_code_is_a_number(seed: int) -> None:
    q = packed("int8-channel", seed)
    stored = {key: tensor.clone() for key, tensor in q.tensors().items()}
    stored["codes"][1] = torch.arange(256, dtype=torch.uint8)
    want = torch.arange(256, dtype=torch.uint8).view(torch.int8).float() * stored["scales"][1]
    assert torch.equal(load(q, stored).dequantize()[1], want)


@pytest.mark.parametrize("code", [16, 255])
def test_zero_point_values(code: int, seed: int) -> None:
    def change(stored: Stored) -> None:
        stored["zero_points"][2, 3] = code

    refuse("int4-g32-zp", seed, change, "0 to 15; 1 are not, the first at row 2, block 3")


def test_zero_points_of_the_wrong_type(seed: int) -> None:
    refuse("int4-g32-zp", seed, lambda s: s.update(zero_points=s["zero_points"].char()), "int8")
    refuse("int4-g32-zp", seed, lambda s: s.pop("zero_points"), "missing: zero_points")


@pytest.mark.parametrize("name", [name for name in NAMES if FORMATS[name].block])
def test_padding_that_is_not_zero(name: str, seed: int) -> None:
    # Columns that are not there must be zeros: garbage in padding reaches a product in some kernel.
    q = packed(name, seed, (4, 41))
    stored = {key: tensor.clone() for key, tensor in q.tensors().items()}
    stored["codes"][3, -1] ^= 0x10
    with pytest.raises(QuantizationError, match="padded by"):
        load(q, stored)
    if q.spec.element == "e2m1":
        stored["codes"][3, -1] = 0x80  # -0 is a zero
        assert torch.equal(load(q, stored).dequantize(), q.dequantize())


def test_dequantize_is_exact_in_float64(seed: int) -> None:
    for name in NAMES:
        q = packed(name, seed, (6, 200))
        codes = torch.arange(256, dtype=torch.uint8)
        if q.spec.bits == 4:
            single = torch.stack([q.codes & 15, q.codes >> 4], -1).flatten(1)
            values = torch.tensor(q.spec.levels).double()[single.long()]
        else:
            kind = torch.float8_e4m3fn if q.spec.element == "e4m3" else torch.int8
            values = codes.view(kind).double()[q.codes.long()]
        block = q.spec.block_of(200)
        if q.zero_points is not None:
            values = values - (q.zero_points.double() - 8).repeat_interleave(block, 1)
        scales = q.scales.double()
        if q.spec.scale in ("e4m3", "e8m0"):
            narrow = torch.float8_e4m3fn if q.spec.scale == "e4m3" else torch.float8_e8m0fnu
            scales = q.scales.view(narrow).double()
        exact = values * scales.repeat_interleave(block, 1) * q.global_scale
        got = q.dequantize().double()
        assert (got - exact[:, :200]).abs().le(exact[:, :200].abs() * 2.0**-23).all(), name


def test_lost_blocks(seed: int) -> None:
    w = torch.from_numpy(np.random.default_rng(seed).standard_normal((6, 256))).float()
    w[2, 16:32] *= 1e-9
    q = quantize(w, "nvfp4")
    assert q.lost_blocks(w) == q.zeroed_blocks == 1
    assert q.lost_blocks(torch.zeros_like(w)) == 0


@pytest.mark.parametrize("name", ["nvfp4", "int4-g128", "int4-g128-zp"])
def test_a_zero_scale_over_codes_that_are_not_zero(name: str, seed: int) -> None:
    def change(stored: Stored) -> None:
        stored["scales"][3, 1] = 0

    refuse(name, seed, change, r"1 zero scales .* row 3, block 1")


def test_negative_zero_under_a_zero_scale_is_zero(seed: int) -> None:
    q = packed("nvfp4", seed)
    stored = {key: tensor.clone() for key, tensor in q.tensors().items()}
    stored["scales"][0, 0] = 0
    stored["codes"][0, :8] = 0x88
    assert not load(q, stored).dequantize()[0, :16].any()


def test_shapes_that_make_no_sense(seed: int) -> None:
    q = packed("nvfp4", seed)
    with pytest.raises(QuantizationError, match="at least one row"):
        QuantizedTensor.from_tensors("nvfp4", (0, 256), q.tensors())
    with pytest.raises(QuantizationError, match="unknown weight format"):
        QuantizedTensor.from_tensors("fp4", (6, 256), q.tensors())
