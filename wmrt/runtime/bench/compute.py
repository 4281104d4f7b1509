"""The other floor of a step: what its multiplications take when the weights come out of a cache."""

from __future__ import annotations

import ctypes
import time

import torch

from wmrt.core import measure
from wmrt.kernels.native import library as native
from wmrt.quant import Recipe, quantize
from wmrt.quant.layouts import to_layout

#: Shape of the weight: 1.2 MB in 4 bits, so that it stays in a cache; wide as a 1.3B model's.
SHAPE = (1024, 2048)
TIMES = 30


def nanoseconds_per_weight(recipe: Recipe, batch: int, threads: int = 1) -> float:
    """Of one native linear with ``batch`` rows of activations, shared by ``threads`` threads: the
    median of 30 calls, after some that do not count.

    All threads run together, for processors may share what computes: the two threads of a core do.

    Raises `UnsupportedError` where the recipe has no native kernel or there is no library.
    """
    library, isa = native.library(), native.isa().number
    weight = quantize(torch.randn(SHAPE), recipe.weight_format)
    rows = to_layout(weight, "cpu_interleaved")["interleaved"]
    form, activation = native.FORMATS[recipe.weight_format], native.ACTIVATIONS[recipe.activation]
    scales = (form, activation, weight.global_scale)
    matrix = native.Matrix(rows.data_ptr(), None, rows.stride(0), *SHAPE, *scales)
    x, y = torch.randn(batch, SHAPE[1]), torch.empty(batch, SHAPE[0])
    size = batch * library.wmrt_prepared_bytes(form, activation, SHAPE[1])
    work = torch.empty(size + 64, dtype=torch.uint8)
    aligned = -(-work.data_ptr() // 64) * 64
    taken = []
    with native.Pool(threads) as pool:
        arguments = (isa, pool.handle, ctypes.byref(matrix), x.data_ptr(), batch, aligned)
        for _ in range(TIMES + TIMES // 3):
            begin = time.perf_counter_ns()
            code = library.wmrt_linear(*arguments, y.data_ptr())
            taken.append(time.perf_counter_ns() - begin)
            native.check(code, f"a linear of {recipe.name}")
    return measure.median(taken[TIMES // 3 :]) / (SHAPE[0] * SHAPE[1])
