"""Device functions of `dense`: turns of a warp over rows of a matrix, 16 bytes a lane and row."""

from __future__ import annotations

import triton
import triton.language as tl

from wmrt.kernels.triton.gemv_rows import pin
from wmrt.kernels.triton.gemv_step import quarters


@triton.jit
def inverse_rms(
    x: tl.tensor, x_stride: tl.tensor, eps: tl.tensor, K: tl.constexpr, BATCH: tl.constexpr
) -> tl.tensor:
    """1 / sqrt(mean(x^2) + eps) of each row x[BATCH, K]: a tuple of [1, 1, 1]."""
    totals: tl.tensor = ()
    for _ in tl.static_range(BATCH):
        totals = totals + (tl.zeros((1, 32, 4), tl.float32),)
    if BATCH == 1:
        for start in tl.static_range(0, K, 128):  # all loads on their way at once
            totals = add_squares(totals, x, x_stride, start, K)
    else:  # those of all rows are enough, and unrolled they spilled registers
        for start in range(0, K, 128):
            totals = add_squares(totals, x, x_stride, start, K)
    found: tl.tensor = ()
    for b in tl.static_range(BATCH):
        total = tl.sum(tl.sum(totals[b], 2, keep_dims=True), 1, keep_dims=True)
        found = found + (tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(total, K * 1.0) + eps)),)
    return found


@triton.jit
def add_squares(
    totals: tl.tensor, x: tl.tensor, x_stride: tl.tensor, start: tl.tensor, K: tl.constexpr
) -> tl.tensor:
    """Each total plus the squares of 128 columns of its row."""
    at = start + tl.arange(0, 32)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    added: tl.tensor = ()
    for b in tl.static_range(len(totals)):
        value = tl.load(x + b * x_stride + at, mask=at < K, other=0.0)
        added = added + (tl.fma(value, value, totals[b]),)
    return added


@triton.jit
def turns(
    acc: tl.tensor,
    weight: tl.tensor,
    x: tl.tensor,
    norm: tl.tensor,
    scales: tl.tensor,
    x_stride: tl.tensor,
    first: tl.tensor,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    COUNT: tl.constexpr,
    LAST: tl.constexpr,
    HALF: tl.constexpr,
    ROUND: tl.constexpr,
    NORM: tl.constexpr,
) -> tl.tensor:
    """`acc` plus `COUNT` turns from turn `first` on; `LAST`: the row may end within."""
    lanes = tl.arange(0, 32)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    loaded: tl.tensor = ()
    for t in tl.static_range(COUNT):
        at = (first + t) * 128 + lanes
        inside = at < (WORDS if LAST else (first + COUNT) * 128)
        loaded = loaded + (
            tl.load(weight + at, mask=inside, other=0, eviction_policy="evict_first"),
        )
    pin(tl.program_id(0))
    for t in tl.static_range(COUNT):
        w = numbers(loaded[t], HALF)
        gains = columns(norm, first + t, K, LAST, HALF) if NORM else ()
        acc = add_products(
            acc, w, gains, x, scales, x_stride, first + t, K, LAST, HALF, ROUND, NORM
        )
    return acc


@triton.jit
def add_products(
    acc: tl.tensor,
    w: tl.tensor,
    gains: tl.tensor,
    x: tl.tensor,
    scales: tl.tensor,
    x_stride: tl.tensor,
    turn: tl.tensor,
    K: tl.constexpr,
    LAST: tl.constexpr,
    HALF: tl.constexpr,
    ROUND: tl.constexpr,
    NORM: tl.constexpr,
) -> tl.tensor:
    """Each vector's sums plus a lane's numbers `w` of one turn times what they meet of it."""
    sums: tl.tensor = ()
    for b in tl.static_range(len(acc)):
        values = columns(x + b * x_stride, turn, K, LAST, HALF)
        total = acc[b]
        for h in tl.static_range(len(values)):
            value = values[h]
            if NORM:
                value = value * scales[b] * gains[h]
            if ROUND:
                value = value.to(tl.bfloat16).to(tl.float32)
            parts = quarters(value)
            for i in tl.static_range(4):
                total = tl.fma(w[h * 4 + i], parts[i], total)
        sums = sums + (total,)
    return sums


@triton.jit
def numbers(words: tl.tensor, HALF: tl.constexpr) -> tl.tensor:
    """Words [R, 32, 4] -> the four floats of a lane, or its eight of bfloat16, each [R, 32]."""
    found: tl.tensor = ()
    parts = quarters(words)
    for i in tl.static_range(4):
        if HALF:
            low = (parts[i] << 16).to(tl.float32, bitcast=True)
            found = found + (low, (parts[i] & -65536).to(tl.float32, bitcast=True))
        else:
            found = found + (parts[i],)
    return found


@triton.jit
def columns(
    row: tl.tensor, turn: tl.tensor, K: tl.constexpr, LAST: tl.constexpr, HALF: tl.constexpr
) -> tl.tensor:
    """The floats of `row` that belong to a lane's numbers of one turn: one or two [1, 32, 4]."""
    EACH: tl.constexpr = 8 if HALF else 4
    lanes = tl.arange(0, 32)[None, :, None] * EACH + tl.arange(0, 4)[None, None, :]
    found: tl.tensor = ()
    for h in tl.static_range(EACH // 4):
        at = turn * (32 * EACH) + h * 4 + lanes
        inside = at < (K if LAST else (turn + 1) * (32 * EACH))
        found = found + (tl.load(row + at, mask=inside, other=0.0),)
    return found
