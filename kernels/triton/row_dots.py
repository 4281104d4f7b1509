"""Device functions: rows of a small float matrix times one vector, with all loads in flight.

For matrices that a step reads once and that are too small to fill the memory pipeline by their
size: a program asks for everything it needs before it multiplies. Products and sums are float32,
in one order whatever the batch, so a robot's numbers are the same bits beside any others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wmrt.kernels.state_arguments import power
from wmrt.kernels.triton.gemv_rows import pin

#: Weights of one pass that a lane holds, all on their way at once: 64 registers of bfloat16.
HELD = 128
#: Weights of one row and pass that a lane multiplies: its sums take as many registers.
EACH = 16


@triton.jit
def row_dots(
    weight: tl.tensor,
    rows: tl.tensor,
    x: tl.tensor,
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    TURNS: tl.constexpr,
    SETS: tl.constexpr,
    STRIDE: tl.constexpr,
    POLICY: tl.constexpr,
    PIN: tl.constexpr,
) -> tl.tensor:
    """`SETS` float32[R]: weight[rows + i STRIDE] x for each set i, of a weight [.., K] and x[K].

    `CHUNK` columns at a time, `TURNS` chunks loaded before the first is used. `PIN` keeps all
    loads of weights above, also those that the caller wrote before.
    """
    totals: tl.tensor = ()
    for _ in tl.static_range(SETS):
        totals = totals + (tl.zeros((rows.shape[0], CHUNK), tl.float32),)
    for start in tl.static_range(0, K, CHUNK * TURNS):
        loaded: tl.tensor = ()
        for t in tl.static_range(TURNS):
            if start + t * CHUNK < K:
                for i in tl.static_range(SETS):
                    place = weight + (rows + i * STRIDE)[:, None] * K
                    loaded = loaded + (part(place, start + t * CHUNK, K, CHUNK, POLICY),)
        if PIN:
            pin(tl.program_id(0))
        for t in tl.static_range(TURNS):
            if start + t * CHUNK < K:
                # Fewer numbers than lanes: every lane reads the x it needs by itself. More would be
                # read once and go through shared memory behind two barriers, so each row reads its
                # own, from the first level cache.
                place = (x + (rows * 0))[:, None] if CHUNK >= 128 else x
                values = part(place, start + t * CHUNK, K, CHUNK, "")
                totals = add_products(totals, loaded, values, t * SETS)
    sums: tl.tensor = ()
    for i in tl.static_range(SETS):
        sums = sums + (tl.sum(totals[i], 1),)
    return sums


@triton.jit
def part(
    place: tl.tensor,
    start: tl.constexpr,
    K: tl.constexpr,
    CHUNK: tl.constexpr,
    POLICY: tl.constexpr,
) -> tl.tensor:
    """Columns `start` on of K, 0 behind them, of rows at `place` [R, 1]."""
    at = start + tl.arange(0, CHUNK)[None, :]
    if start + CHUNK <= K:
        return tl.load(place + at, eviction_policy=POLICY)
    else:
        return tl.load(place + at, mask=at < K, other=0.0, eviction_policy=POLICY)


@triton.jit
def add_products(
    totals: tl.tensor, loaded: tl.tensor, x: tl.tensor, first: tl.constexpr
) -> tl.tensor:
    """Each total [R, C] plus its weights, from number `first` of `loaded` on, times x[R, C]."""
    added: tl.tensor = ()
    for i in tl.static_range(len(totals)):
        added = added + (totals[i] + loaded[first + i].to(tl.float32) * x,)
    return added


def split(columns: int, rows: int, sets: int, warps: int) -> tuple[int, int]:
    """`CHUNK` and `TURNS` for so many columns, rows of a set, sets, and warps of a program.

    A chunk gives every lane 8 weights at least, so that it can load 16 bytes at once.
    """
    lanes, rows = 32 * warps, power(rows)
    chunk = max(1, 8 * lanes // rows, min(power(columns), EACH * lanes // rows))
    return chunk, max(1, min(-(-columns // chunk), HELD * lanes // (chunk * rows * sets)))
