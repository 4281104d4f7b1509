"""Device functions: one step of 256 weights of a row, 32 for each of eight lanes.

Tensors of words are [R, L, 4] and of scales [R, L]: R rows, L lanes. What is int8 arithmetic here
is exact within a block; `fold` says where float32 begins to round.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wmrt.kernels.triton.decode import bytes8, dot8, dot_decoded, operands8, unbias8
from wmrt.kernels.triton.decode_float import e4m3_pair, e8m0, floats8


@triton.jit
def step_of(
    acc: tl.tensor,
    q: tl.tensor,
    entry: tl.tensor,
    x: tl.tensor,
    factors: tl.tensor,
    step: tl.tensor,
    u: tl.constexpr,
    valid: tl.tensor,
    zero: tl.tensor,
    STEPS: tl.constexpr,
    FORMAT: tl.constexpr,
    FLOAT: tl.constexpr,
    DECODE: tl.constexpr,
) -> tl.tensor:
    """`acc` plus one step of every lane: its words q [R, L, 4] and `entry` [R, L]."""
    lane, four = tl.arange(0, q.shape[1]) % 8, tl.arange(0, 4)[None, :]
    words = in_blocks(q, FORMAT)
    # A zero of each lane's own: from one for all, sm_120 keeps the table where PRMT needs a MOV.
    zero = tl.arange(0, q.shape[1])[None, :] * zero
    if FORMAT == "nvfp4":
        zero = zero[:, :, None]
        scales = e4m3_pair(entry, DECODE)
    elif FORMAT == "mxfp4":
        scales = (e8m0(entry),)
    else:
        scales = (entry.to(tl.float32),)
    if FLOAT:
        at = (step * 256 + u * 256 + lane * 32)[:, None] + four
        return step_a16(acc, words, scales, x + at, valid, STEPS * 256, FORMAT, DECODE)
    else:
        at = (step * 32 + u * 32 + lane * 4)[:, None] + four
        return step_a8(
            acc, words, scales, x + at, factors + step * 8, valid, zero, STEPS, FORMAT, DECODE
        )


@triton.jit
def step_a8(
    acc: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    codes: tl.tensor,
    factors: tl.tensor,
    valid: tl.tensor,
    zero: tl.tensor,
    STEPS: tl.constexpr,
    FORMAT: tl.constexpr,
    DECODE: tl.constexpr,
) -> tl.tensor:
    """A lane's blocks times the codes at `codes` (as int64, [L, 4]) and their scales [L].

    One vector: words go from permute to dot product, positive and negative weights apart. Several:
    words become signed bytes once, and each vector costs two dot products a word.
    """
    E2M1: tl.constexpr = FORMAT != "int4"
    parts: tl.tensor = ()
    if len(acc) > 1:
        for i in tl.static_range(len(words)):
            parts = parts + (bytes8(words[i], zero, E2M1, DECODE),)
    sums: tl.tensor = ()
    for b in tl.static_range(len(acc)):
        x = in_blocks(tl.load(codes + b * (STEPS * 32))[None], FORMAT)
        f = tl.load(factors + b * (STEPS * 8), mask=valid, other=0.0)[None]
        if len(acc) == 1:
            plus, minus = tl.zeros_like(words[0]), tl.zeros_like(words[0])
            for i in tl.static_range(len(words)):
                plus, minus = dot8(words[i], x[i], plus, minus, zero, E2M1, DECODE)
            dots = plus - minus
        else:
            pairs: tl.tensor = ()
            dots = tl.zeros_like(x[0].to(tl.int32))
            for i in tl.static_range(len(words)):
                pairs = pairs + (operands8(x[i], E2M1, DECODE),)
                dots = unbias8(pairs[i][0], pairs[i][1], dots, E2M1, DECODE)
            for i in tl.static_range(len(words)):
                dots = dot_decoded(
                    parts[i][0], parts[i][1], pairs[i][0], pairs[i][1], dots, E2M1, DECODE
                )
        sums = sums + (fold(acc[b], dots.to(tl.float32), scales, f, FORMAT),)
    return sums


@triton.jit
def fold(
    acc: tl.tensor, dots: tl.tensor, scales: tl.tensor, factors: tl.tensor, FORMAT: tl.constexpr
) -> tl.tensor:
    """acc + dots * scales * factors, over the one or two blocks of a lane.

    E2M1's dot products times their scales are exact, INT4's round once; so does every fma.
    """
    if FORMAT == "nvfp4":
        first, second = tl.split(dots)
        return tl.fma(tl.fma(first, scales[0], second * scales[1]), factors, acc)
    else:
        return tl.fma(dots * scales[0], factors, acc)


@triton.jit
def step_a16(
    acc: tl.tensor,
    words: tl.tensor,
    scales: tl.tensor,
    x: tl.tensor,
    valid: tl.tensor,
    WIDTH: tl.constexpr,
    FORMAT: tl.constexpr,
    DECODE: tl.constexpr,
) -> tl.tensor:
    """A lane's blocks times the float32 at x [L, 4]: of its 32, number 8 w + p lies at 4 p + w, so
    that one load brings what the four words need in place p."""
    weights: tl.tensor = ()
    for i in tl.static_range(len(words)):
        weights = weights + (floats8(words[i], DECODE),)
    sums: tl.tensor = ()
    for b in tl.static_range(len(acc)):
        values: tl.tensor = ()
        for p in tl.static_range(8):
            at = x + (b * WIDTH + p * 4)
            values = values + (
                in_blocks(tl.load(at, mask=valid[:, None], other=0.0)[None], FORMAT),
            )
        dots = tl.zeros_like(weights[0][0])
        for i in tl.static_range(len(words)):
            for p in tl.static_range(8):
                dots = tl.fma(weights[i][p], values[p][i], dots)
        if FORMAT == "nvfp4":
            first, second = tl.split(dots)
            total = tl.fma(first, scales[0], tl.fma(second, scales[1], acc[b]))
        else:
            total = tl.fma(dots, scales[0], acc[b])
        sums = sums + (total,)
    return sums


@triton.jit
def in_blocks(t: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """[R, L, 4] by word of a lane -> the words of a block in order: two tensors [R, L, 2] where a
    lane has two blocks (nvfp4), else four [R, L]."""
    if FORMAT == "nvfp4":
        return tl.split(tl.reshape(t, (t.shape[0], t.shape[1], 2, 2)))
    else:
        return quarters(t)


@triton.jit
def quarters(t: tl.tensor) -> tl.tensor:
    """[R, L, 4] -> four of [R, L], in order."""
    even, odd = tl.split(tl.reshape(t, (t.shape[0], t.shape[1], 2, 2)))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d
