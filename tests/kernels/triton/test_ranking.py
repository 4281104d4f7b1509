"""The order of floats in integers, and ranks in it, against numpy's stable sort."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
import triton
import triton.language as tl

from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.ranking import ascending, ranks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def ranked(x: tl.tensor, rank: tl.tensor, N: tl.constexpr) -> None:
    slot = tl.arange(0, N)
    tl.store(rank + slot, ranks(ascending(tl.load(x + slot)), slot))


def test_best_first_of_equal_ones_the_lowest_and_nan_before_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 1.0]
    x = np.concatenate([special, special, rng.standard_normal(32), np.arange(10) // 3])
    x = rng.permutation(x).astype(np.float32)
    out = torch.empty(64, dtype=torch.int32, device=DEVICE)
    with nullcontext() if DEVICE == "cuda" else repaired():
        ranked[(1,)](torch.from_numpy(x).to(DEVICE), out, 64)
    # NaN goes behind all numbers there, so its place is taken by a number above all others.
    key = np.where(np.isnan(x), -np.inf, np.where(np.isposinf(x), -3.4e38, -x))
    want = np.argsort(np.argsort(key, kind="stable"), kind="stable")
    np.testing.assert_array_equal(out.cpu().numpy(), want)
