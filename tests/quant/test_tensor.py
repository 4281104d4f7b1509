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
    refuse(name, seed, lambda s: s.update(zero_point=s["codes"]), "unexpected: zero_point")


def test_a_format_without_global_scale_takes_none(seed: int) -> None:
    one = torch.tensor(1.0)
    refuse("mxfp4", seed, lambda s: s.update(global_scale=one), "unexpected: global_scale")


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_types(name: str, seed: int) -> None:
    refuse(name, seed, lambda s: s.update(codes=s["codes"][:, :-1]), r"codes .* must be")
    refuse(name, seed, lambda s: s.update(scales=s["scales"].t()), r"scales .* must be")
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
     ("int4-g128", float("nan")), ("int4-g128", float("inf")), ("int4-g128", -0.5)],
)  # fmt: skip
def test_scale_values(name: str, value: float, seed: int) -> None:
    def change(stored: Stored) -> None:
        stored["scales"][4, 1] = value

    refuse(name, seed, change, "the first at row 4, block 1")


@pytest.mark.parametrize("name", ["nvfp4", "int4-g128"])
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
