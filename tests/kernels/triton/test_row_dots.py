"""Rows of a matrix times a vector, in chunks and passes that do and do not divide its columns."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.row_dots import EACH, HELD, row_dots, split

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def two_sets(
    weight: tl.tensor,
    x: tl.tensor,
    out: tl.tensor,
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    TURNS: tl.constexpr,
) -> None:
    """Rows 1, 3, 5, 7 and, 10 rows on, 11, 13, 15, 17 times x."""
    row = tl.arange(0, 4)
    sums = row_dots(weight, row * 2 + 1, x, K, CHUNK, TURNS, 2, 10, "", True)
    tl.store(out + row, sums[0])
    tl.store(out + 4 + row, sums[1])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("columns", "chunk", "turns"), [(70, 16, 2), (64, 16, 4), (300, 128, 2)])
def test_rows_times_a_vector(
    columns: int, chunk: int, turns: int, kind: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(18, columns, generator=generator).to(kind)
    x, out = torch.randn(columns, generator=generator), torch.empty(8, device=DEVICE)
    with nullcontext() if DEVICE == "cuda" else repaired():
        two_sets[(1,)](weight.to(DEVICE), x.to(DEVICE), out, columns, chunk, turns)
    rows = weight[[1, 3, 5, 7, 11, 13, 15, 17]].double()
    bound = (rows.abs() @ x.double().abs()) * (columns + 2) * 2.0**-24
    off = (out.cpu().double() - rows @ x.double()).abs()
    assert bool((off <= bound).all())


def test_plans_load_16_bytes_at_once_and_hold_what_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for columns, rows, sets, log in rng.integers(1, (5000, 129, 5, 5), (500, 4)).tolist():
        lanes, padded = 32 * 2**log, 1 << (rows - 1).bit_length()
        chunk, turns = split(columns, rows, sets, 2**log)
        assert chunk & (chunk - 1) == 0 and chunk * padded >= 8 * lanes
        assert chunk * padded <= EACH * lanes or chunk * padded == 8 * lanes
        held = chunk * turns * padded * sets
        assert turns == 1 or held <= HELD * lanes
        assert (turns - 1) * chunk < columns
