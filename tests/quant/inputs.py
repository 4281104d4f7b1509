"""Inputs for the number formats: random bit patterns, and the neighbourhoods of awkward values."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st


def random_floats(seed: int, count: int = 200_000) -> np.ndarray:
    """Finite float32 of every magnitude: random bit patterns."""
    bits = np.random.default_rng(seed).integers(0, 2**32, count, dtype=np.uint32)
    values = bits.view(np.float32)
    return values[np.isfinite(values)]


def around(values: np.ndarray) -> np.ndarray:
    """Each value with both float32 neighbours, in both signs."""
    values = values.astype(np.float32)
    near = [values, np.nextafter(values, np.float32(np.inf)), np.nextafter(values, np.float32(0))]
    all_near = np.concatenate(near)
    return np.concatenate([all_near, -all_near])


def midpoints(grid: np.ndarray) -> np.ndarray:
    return (grid[1:].astype(np.float64) + grid[:-1]) / 2


def same_bits(got: torch.Tensor, want: np.ndarray) -> None:
    """Equal bit for bit, any NaN being as good as another."""
    mine = got.numpy()
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(mine), nan)
    np.testing.assert_array_equal(mine[~nan].view(np.uint32), want[~nan].view(np.uint32))


@st.composite
def adversarial(draw: st.DrawFn, most_rows: int = 20, most_columns: int = 200) -> torch.Tensor:
    """Finite float32[N, K] to quantize: magnitudes over 2^+-20, exact ties, tiny and zero blocks.

    Blocks of 16 are drawn apart, each as a kind of its own, so that tails, blocks of zeros (of both
    signs), near-underflows and exact multiples of powers of two meet in one matrix.
    """
    rows, columns = draw(st.integers(1, most_rows)), draw(st.integers(1, most_columns))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    blocks = -(-columns // 16)
    size = (rows, blocks, 1)
    x = rng.standard_normal((rows, blocks, 16))
    halves = rng.integers(-16, 17, x.shape) / 4.0  # every E2M1 level and midpoint up to 4
    whole = rng.integers(-15, 16, x.shape) / 2.0
    kind = rng.integers(0, 8, size)
    x = np.where(kind == 0, halves, np.where(kind == 1, whole, x))
    spread = draw(st.sampled_from([0, 2, 8, 20]))
    x *= 2.0 ** rng.integers(-spread, spread + 1, size)
    x = np.where(kind == 2, x * draw(st.sampled_from([1e-7, 1e-12, 1e-30])), x)
    x = np.where(kind == 3, np.where(rng.random(x.shape) < 0.5, 0.0, -0.0), x)
    x = np.where((kind == 4) & (rng.random(x.shape) < 0.9), 0.0, x)  # one or two elements
    return torch.from_numpy(x.reshape(rows, -1)[:, :columns].astype(np.float32))
