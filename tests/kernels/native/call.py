"""Calls of the library's linear layer with every argument open, and weights made for it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from tests.kernels import oracle
from wmrt.kernels.native import library as native
from wmrt.kernels.native.library import Isa, Pool
from wmrt.quant import QuantizedTensor
from wmrt.quant.formats import block_format

ISAS = native.usable_isas()
A8 = [(name, "int8-g32") for name in ("nvfp4", "mxfp4", "int4-g128")]
A16 = [(name, "bf16") for name in ("nvfp4", "mxfp4")]
PLAIN = [("bf16", "bf16"), ("bf16", "float32"), ("float32", "float32")]


@dataclass
class Layer:
    """A matrix in the memory that the library reads; float [N, K], bfloat16 or packed."""

    weight: torch.Tensor | QuantizedTensor
    activation: str
    bias: torch.Tensor | None = None
    rows: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.rows = (
            self.weight
            if isinstance(self.weight, torch.Tensor)
            else oracle.laid_out(self.weight, "cpu_interleaved").tensors["interleaved"]
        )

    @property
    def format(self) -> str:
        if isinstance(self.weight, QuantizedTensor):
            return self.weight.format
        return {torch.float32: "float32", torch.bfloat16: "bf16"}[self.weight.dtype]

    def matrix(self, begin: int = 0, end: int | None = None) -> native.Matrix:
        """Rows [begin, end) of it."""
        rows = self.rows[begin:end]
        return native.Matrix(
            rows.data_ptr(),
            None if self.bias is None else self.bias[begin:end].data_ptr(),
            rows.stride(0) * rows.element_size(),
            len(rows),
            self.weight.shape[1],
            native.FORMATS[self.format],
            native.ACTIVATIONS[self.activation],
            getattr(self.weight, "global_scale", 1.0),
        )

    def exact(self, x: torch.Tensor) -> oracle.Answer:
        if self.activation != "float32":
            return oracle.answer(self.activation, x, self.weight)
        assert isinstance(self.weight, torch.Tensor)
        terms = x.double().numpy()[:, None, :] * self.weight.double().numpy()[None]
        # A product rounds as well where it is not part of a fused addition.
        bound = np.abs(terms).sum(-1) * (terms.shape[2] + 3) * oracle.UNIT * 1.01 + 1e-44
        return oracle.Answer(terms.sum(-1), bound)


def run(
    isa: Isa,
    layer: Layer,
    x: torch.Tensor,
    pool: Pool | None = None,
    rows: tuple[int, int | None] = (0, None),
    at: int | None = None,
) -> torch.Tensor:
    """float32[batch, K] -> float32[batch, N] of those rows, batch 1 to 16. `at`: the address of a
    copy of them."""
    return prepared_and_run(isa, layer, x, pool, rows, at)[1]


def prepared_and_run(
    isa: Isa,
    layer: Layer,
    x: torch.Tensor,
    pool: Pool | None = None,
    rows: tuple[int, int | None] = (0, None),
    at: int | None = None,
) -> tuple[NDArray[np.uint8], torch.Tensor]:
    """Also the activations as the kernels took them, uint8[batch, bytes]."""
    matrix, library = layer.matrix(*rows), native.library()
    matrix.rows = at or matrix.rows
    each = library.wmrt_prepared_bytes(matrix.format, matrix.activation, matrix.k)
    assert each and each % 64 == 0
    work = torch.full((len(x), each), 0xA5, dtype=torch.uint8)
    y = torch.full((len(x) + 1, matrix.n), 12345.0)
    code = library.wmrt_linear(
        isa.number,
        pool,
        ctypes.byref(matrix),
        x.contiguous().data_ptr(),
        len(x),
        work.data_ptr(),
        y.data_ptr(),
    )
    assert code == 0
    assert (y[-1] == 12345.0).all()  # nothing behind the result
    return work.numpy(), y[:-1]


def weight(format: str, shape: tuple[int, int], rng: np.random.Generator) -> object:
    """Random and good, of any format."""
    if format == "float32":
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    return oracle.random_weight(format, shape, rng)


def layer(
    pair: tuple[str, str], shape: tuple[int, int], rng: np.random.Generator, bias: bool = False
) -> Layer:
    made = weight(pair[0], shape, rng)
    assert isinstance(made, (torch.Tensor, QuantizedTensor))
    return Layer(made, pair[1], activations(rng, (shape[0],)) if bias else None)


def packed(format: str, codes: NDArray[np.uint8], scales: NDArray[np.generic]) -> QuantizedTensor:
    """Of single codes [N, K] and stored scales [N, K/block], whatever they are."""
    spec = block_format(format)
    assert codes.shape[1] % spec.block == 0 and scales.shape[1] == codes.shape[1] // spec.block
    both = torch.from_numpy(codes[:, 0::2] | codes[:, 1::2] << 4)
    return QuantizedTensor(
        format, codes.shape, both, torch.from_numpy(scales.astype(_stored(format)))
    )


def _stored(format: str) -> type[np.generic]:
    return np.float16 if format.startswith("int4") else np.uint8


def activations(rng: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    x = rng.standard_normal(shape) * 10.0 ** rng.uniform(-2, 2, (*shape[:-1], 1))
    return torch.from_numpy(x.astype(np.float32))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, but any NaN for any other."""
    nan = a.isnan()
    return torch.equal(nan, b.isnan()) and torch.equal(
        a[~nan].view(torch.int32), b[~nan].view(torch.int32)
    )
