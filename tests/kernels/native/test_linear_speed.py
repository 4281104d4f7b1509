"""Speed of the library's linear layers at the 1.3b preset's shapes, batch 1, one and all threads.

Weights are rotated over more than 320 MB, so that they come from memory, not from a cache; the
floor is a prefetched read of as many bytes. Both report GB/s in `extra_info`. Run it on a machine
that does nothing else: ``pytest tests/kernels/native/test_linear_speed.py --benchmark-enable``.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels.native import call
from wmrt.core import machine
from wmrt.kernels.native import library as native
from wmrt.kernels.native.library import Pool

SHAPES = [(2048, 5632), (5632, 2048), (2048, 2048)]
ROTATED = 320 << 20
THREADS = sorted({1, machine.usable_cpus()})


def copies(benchmark: Any, rows: torch.Tensor) -> torch.Tensor:
    """uint8[copies, bytes] of the rows; one copy where nothing is timed."""
    size = rows.numel() * rows.element_size()
    count = 1 if benchmark.disabled else -(-ROTATED // size)
    held = torch.empty(count, size, dtype=torch.uint8)
    held[:] = rows.contiguous().view(torch.uint8).view(-1)
    return held


def rotated(held: torch.Tensor) -> itertools.cycle[int]:
    """The copies' addresses, one after the other, for ever."""
    return itertools.cycle([part.data_ptr() for part in held])


def report(benchmark: Any, size: int) -> None:
    if benchmark.stats is not None:
        benchmark.extra_info["GB/s"] = round(size / benchmark.stats.stats.median / 1e9, 1)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("pair", call.A8 + call.A16 + call.PLAIN[:1], ids="-".join)
def test_linear(
    pair: tuple[str, str], shape: tuple[int, int], threads: int, seed: int, benchmark: Any
) -> None:
    rng = np.random.default_rng(seed)
    if benchmark.disabled:
        shape = (shape[0] // 16, shape[1])
    layer, x = call.layer(pair, shape, rng), call.activations(rng, (1, shape[1]))
    matrix, library, isa = layer.matrix(), native.library(), native.isa().number
    each = library.wmrt_prepared_bytes(matrix.format, matrix.activation, matrix.k)
    work, y = torch.empty(each, dtype=torch.uint8), torch.empty(shape[0])
    held = copies(benchmark, layer.rows)
    at = rotated(held)
    arguments = (ctypes.byref(matrix), x.data_ptr(), 1, work.data_ptr(), y.data_ptr())
    with Pool(threads) as pool:

        def once() -> int:
            matrix.rows = next(at)
            return int(library.wmrt_linear(isa, pool, *arguments))

        assert benchmark(once) == 0
    report(benchmark, layer.rows.numel() * layer.rows.element_size())
    layer.exact(x).check(y[None])


@pytest.mark.parametrize("threads", THREADS)
def test_stream(threads: int, benchmark: Any) -> None:
    size = 6 << 20
    held = copies(benchmark, torch.ones(size, dtype=torch.uint8))
    at = rotated(held)
    with Pool(threads) as pool:
        stream, isa = native.library().wmrt_stream, native.isa().number
        assert benchmark(lambda: stream(isa, pool, next(at), size)) > 0
    report(benchmark, size)
