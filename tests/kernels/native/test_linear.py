"""The native operators, and what the library's linear layer refuses."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
import torch

from tests.kernels import oracle
from tests.kernels.native import call
from tests.kernels.native.call import Layer, activations, run
from wmrt.core.errors import QuantizationError, UnsupportedError, UsageError
from wmrt.kernels import linear, operators
from wmrt.kernels.native import library as native
from wmrt.kernels.native.library import Isa

ISAS = [pytest.param(isa, id=isa.name) for isa in call.ISAS]
NATIVE = [op for op in operators() if op.implementation == "native"]
OK, ARGUMENT, NO_ISA, NO_FORMAT = 0, -1, -2, -3


def test_names() -> None:
    assert {op.name for op in NATIVE} == {
        "linear_nvfp4_a8.native",
        "linear_mxfp4_a8.native",
        "linear_int4_g128_a8.native",
        "linear_nvfp4_a16.native",
        "linear_mxfp4_a16.native",
        "linear_bf16.native",
    }
    assert {op.layout for op in NATIVE if op.format != "bf16"} == {"cpu_interleaved"}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in NATIVE])
def test_operators_use_the_instruction_set_asked_for(
    op: object, isa: Isa, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert op in NATIVE
    chosen = NATIVE[NATIVE.index(op)]  # type: ignore[arg-type]
    rng = np.random.default_rng(seed)
    layer, x = call.layer((chosen.format, chosen.activation), (20, 900), rng), None
    x = activations(rng, (40, 900))
    monkeypatch.setenv("WMRT_ISA", isa.name)
    got = oracle.reading_canonical(chosen)(x.view(2, 20, 900), layer.weight).view(40, 20)
    assert torch.equal(got[16:32], run(isa, layer, x[16:32]))
    assert torch.equal(got[39:], run(isa, layer, x[39:]))


def test_only_its_own_layout_and_device(seed: int) -> None:
    weight = oracle.random_weight("nvfp4", (4, 256), np.random.default_rng(seed))
    op, x = linear("nvfp4", "int8-g32", "native"), torch.ones(1, 256)
    with pytest.raises(QuantizationError, match="cpu_interleaved, got QuantizedTensor"):
        op(x, weight)
    with pytest.raises(QuantizationError, match="cpu_interleaved, got gpu_gemv"):
        op(x, oracle.laid_out(weight, "gpu_gemv"))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="a tensor on meta"):
        op(x.to("meta"), oracle.laid_out(weight, "cpu_interleaved"))  # type: ignore[arg-type]


def test_an_instruction_set_that_is_not_there(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    op, rng = oracle.reading_canonical(linear("nvfp4", "int8-g32", "native")), seed
    monkeypatch.setenv("WMRT_ISA", "mmx")
    with pytest.raises(UsageError, match="mmx"):
        op(torch.ones(1, 64), oracle.random_weight("nvfp4", (2, 64), np.random.default_rng(rng)))


def test_prepared_bytes() -> None:
    size = native.library().wmrt_prepared_bytes
    for format in range(-1, 7):
        for activation in range(-1, 5):
            pair = (format, activation)
            known = pair in ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 2))
            assert bool(size(*pair, 300)) == known
    assert size(2, 2, 256) == 384 and size(2, 2, 257) == 768 and size(2, 2, 0) == 0
    assert size(2, 1, 300) == size(1, 1, 300) == 2048


def test_arguments_out_of_range(seed: int) -> None:
    layer = call.layer(("nvfp4", "int8-g32"), (4, 300), np.random.default_rng(seed))
    work, y = torch.zeros(17 * 768 + 64, dtype=torch.uint8), torch.zeros(17, 4)
    x = torch.ones(17, 300)

    def code(isa: int = 0, batch: int = 1, shift: int = 0, empty: str = "", **change: int) -> int:
        matrix = layer.matrix()
        for name, value in change.items():
            setattr(matrix, name, value)
        at = {"x": x.data_ptr(), "work": work.data_ptr() + shift, "y": y.data_ptr()}
        if empty in at:
            at[empty] = 0
        given = None if empty == "matrix" else ctypes.byref(matrix)
        call = native.library().wmrt_linear
        return int(call(isa, None, given, at["x"], batch, at["work"], at["y"]))

    assert code() == code(batch=16) == code(shift=64) == OK
    for batch in (-1, 0, 17):
        assert code(batch=batch) == ARGUMENT
    for empty in ("x", "work", "y", "matrix"):
        assert code(empty=empty) == ARGUMENT
    assert code(shift=32) == code(rows=0) == code(n=0) == code(k=0) == ARGUMENT
    assert code(stride=287) == ARGUMENT and code(stride=288) == OK
    assert code(isa=-1) == code(isa=4) == NO_ISA
    assert code(format=5) == code(format=-1) == code(activation=0) == NO_FORMAT
    assert code(format=1, activation=1, stride=601) == ARGUMENT  # not whole bfloat16


@pytest.mark.parametrize("pair", call.A8 + call.A16 + call.PLAIN, ids="-".join)
@pytest.mark.parametrize("isa", ISAS)
def test_nothing_behind_the_last_row_is_read(isa: Isa, pair: tuple[str, str], seed: int) -> None:
    # The matrix ends where a page without access begins.
    rng = np.random.default_rng(seed)
    area = mmap.mmap(-1, 16 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    guard = start + 15 * mmap.PAGESIZE
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(guard, mmap.PAGESIZE, 0) == 0
    for columns in (1, 7, 8, 33, 256, 300, 512):
        layer, x = call.layer(pair, (3, columns), rng), activations(rng, (2, columns))
        expected = [run(isa, layer, x[:batch]) for batch in (1, 2)]
        bytes_ = layer.rows.contiguous().view(torch.uint8).numpy().ravel()
        used = bytes_.size - _unused(layer)
        ctypes.memmove(guard - used, bytes_.ctypes.data, used)
        for batch, y in enumerate(expected, 1):
            assert torch.equal(run(isa, layer, x[:batch], at=guard - used), y)


def _unused(layer: Layer) -> int:
    """Bytes behind the last unit of a row."""
    unit = {"nvfp4": 144, "mxfp4": 136, "int4-g128": 132}.get(layer.format)
    return 0 if unit is None else int(layer.rows.shape[1]) % unit
