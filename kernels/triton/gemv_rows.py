"""Device functions: how a program's lanes share the rows of a weight in layout ``gpu_gemv``.

``8 * SPLIT`` lanes share a row, as `SPLIT` groups of eight. In turn t group g takes run
``t * SPLIT + g`` of four steps, so that a warp reads whole lines of 128 bytes. What is left of a
row, fewer runs than groups and up to three single steps, is shared the same way. Every lane adds up
its blocks in order: with exact dot products results are the same bits from run to run, and for each
activation vector whatever the others are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from wmrt.kernels.triton.gemv_step import quarters, step_of


@triton.jit
def row_sums(
    words: tl.tensor,
    entries: tl.tensor,
    x: tl.tensor,
    factors: tl.tensor,
    rows: tl.tensor,
    zero: tl.tensor,
    STEPS: tl.constexpr,
    ENTRIES: tl.constexpr,
    FORMAT: tl.constexpr,
    OWNERS: tl.constexpr,
    BATCH: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    AHEAD: tl.constexpr,
    FLOAT: tl.constexpr,
    DECODE: tl.constexpr,
) -> tl.tensor:
    """`BATCH` tensors [R, L] whose sum over lanes, times `unit`, is rows `rows` [R] times x.

    `rows` and `zero`: tensors of row numbers and a 0 that the assembler cannot know to be one, see
    `dot8`; the others as in `gemv`. `CHUNK` turns are unrolled, more of them in a loop, and the
    weights of `AHEAD` turns are on their way before the first is used.
    """
    loaded = first_loads(words, entries, rows, zero, STEPS, ENTRIES, OWNERS, SPLIT, CHUNK, AHEAD)
    return sums_after(
        loaded, words, entries, x, factors, rows, zero,
        STEPS, ENTRIES, FORMAT, OWNERS, BATCH, SPLIT, CHUNK, AHEAD, FLOAT, DECODE,
    )  # fmt: skip


@triton.jit
def first_loads(
    words: tl.tensor,
    entries: tl.tensor,
    rows: tl.tensor,
    zero: tl.tensor,
    STEPS: tl.constexpr,
    ENTRIES: tl.constexpr,
    OWNERS: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> tl.tensor:
    """The first loads of weights that `row_sums` does, for `sums_after`. They need no activations,
    so whoever has these still to compute begins with this. Nothing for rows taken in a loop."""
    words += (rows * (STEPS * 32))[:, None, None] + tl.arange(0, 4)[None, None, :]
    entries += (rows * ENTRIES)[:, None]
    loaded: tl.tensor = ()
    if looped(STEPS, SPLIT, CHUNK) == 0:
        loaded = begun(words, entries, 0, zero, STEPS // 4, STEPS % 4, OWNERS, SPLIT, AHEAD)
    return loaded


@triton.jit
def sums_after(
    loaded: tl.tensor,
    words: tl.tensor,
    entries: tl.tensor,
    x: tl.tensor,
    factors: tl.tensor,
    rows: tl.tensor,
    zero: tl.tensor,
    STEPS: tl.constexpr,
    ENTRIES: tl.constexpr,
    FORMAT: tl.constexpr,
    OWNERS: tl.constexpr,
    BATCH: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    AHEAD: tl.constexpr,
    FLOAT: tl.constexpr,
    DECODE: tl.constexpr,
) -> tl.tensor:
    """`row_sums` after `first_loads`."""
    LOOPS: tl.constexpr = looped(STEPS, SPLIT, CHUNK)
    LEFT: tl.constexpr = STEPS // 4 - LOOPS * CHUNK * SPLIT
    words += (rows * (STEPS * 32))[:, None, None] + tl.arange(0, 4)[None, None, :]
    entries += (rows * ENTRIES)[:, None]
    acc: tl.tensor = ()
    for _ in tl.static_range(BATCH):
        acc = acc + (tl.zeros((rows.shape[0], 8 * SPLIT), tl.float32),)
    for loop in range(LOOPS):
        acc = passes(
            acc, (), words, entries, x, factors, loop * (CHUNK * SPLIT), zero,
            STEPS, CHUNK * SPLIT, 0, FORMAT, OWNERS, SPLIT, AHEAD, FLOAT, DECODE,
        )  # fmt: skip
    return passes(
        acc, loaded, words, entries, x, factors, LOOPS * CHUNK * SPLIT, zero,
        STEPS, LEFT, STEPS % 4, FORMAT, OWNERS, SPLIT, AHEAD, FLOAT, DECODE,
    )  # fmt: skip


@triton.constexpr_function
def looped(steps: int, split: int, chunk: int) -> int:
    """How often a loop takes `chunk` turns before the rest of a row is taken unrolled."""
    full = steps // 4 // split
    return (full - 1) // chunk if full > chunk else 0


@triton.jit
def passes(
    acc: tl.tensor,
    loaded: tl.tensor,
    words: tl.tensor,
    entries: tl.tensor,
    x: tl.tensor,
    factors: tl.tensor,
    first: tl.tensor,
    zero: tl.tensor,
    STEPS: tl.constexpr,
    RUNS: tl.constexpr,
    TAIL: tl.constexpr,
    FORMAT: tl.constexpr,
    OWNERS: tl.constexpr,
    SPLIT: tl.constexpr,
    AHEAD: tl.constexpr,
    FLOAT: tl.constexpr,
    DECODE: tl.constexpr,
) -> tl.tensor:
    """`acc` plus `RUNS` runs from run `first` on, and `TAIL` single steps behind them.

    `loaded`: what `begun` gives, or nothing yet.
    """
    TURNS: tl.constexpr = (RUNS + SPLIT - 1) // SPLIT
    COUNT: tl.constexpr = TURNS + (TAIL + SPLIT - 1) // SPLIT
    lane = tl.arange(0, 8 * SPLIT) % 8
    if len(loaded) == 0:
        loaded = begun(words, entries, first, zero, RUNS, TAIL, OWNERS, SPLIT, AHEAD)
    words += (first * 128 + lane * 4)[None, :, None]
    entries += first * (4 * OWNERS)
    x += first * 1024 if FLOAT else first * 128
    factors += first * 32 + lane
    for j in tl.static_range(COUNT):
        if j + AHEAD < COUNT:
            loaded = loaded + (load(words, entries, j + AHEAD, zero, RUNS, TAIL, OWNERS, SPLIT),)
        pin(zero)
        step, valid = place(j, RUNS, TAIL, SPLIT)
        for u in tl.static_range(4 if j < TURNS else 1):
            acc = step_of(
                acc, loaded[j][0][u], loaded[j][1][u], x, factors + u * 8, step, u, valid, zero,
                STEPS, FORMAT, FLOAT, DECODE,
            )  # fmt: skip
    return acc


@triton.jit
def begun(
    words: tl.tensor,
    entries: tl.tensor,
    first: tl.tensor,
    zero: tl.tensor,
    RUNS: tl.constexpr,
    TAIL: tl.constexpr,
    OWNERS: tl.constexpr,
    SPLIT: tl.constexpr,
    AHEAD: tl.constexpr,
) -> tl.tensor:
    """What `passes` loads before it computes: the weights of `AHEAD` turns."""
    COUNT: tl.constexpr = (RUNS + SPLIT - 1) // SPLIT + (TAIL + SPLIT - 1) // SPLIT
    words += (first * 128 + tl.arange(0, 8 * SPLIT) % 8 * 4)[None, :, None]
    entries += first * (4 * OWNERS)
    loaded: tl.tensor = ()
    for j in tl.static_range(AHEAD if AHEAD < COUNT else COUNT):
        loaded = loaded + (load(words, entries, j, zero, RUNS, TAIL, OWNERS, SPLIT),)
    return loaded


@triton.jit
def pin(zero: tl.tensor) -> tl.tensor:
    """Loads above stay above: left alone, the assembler moves each down to its first use, and two
    are in flight where sixteen should be. Costs no instruction while a warp stays together."""
    return tl.inline_asm_elementwise(
        "bar.warp.sync 0xffffffff; mov.b32 $0, $1;",
        "=r,r",
        [zero],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def place(
    i: tl.constexpr, RUNS: tl.constexpr, TAIL: tl.constexpr, SPLIT: tl.constexpr
) -> tl.tensor:
    """The first step that each lane takes in pass `i`, and whether it is the lane's to count.

    A lane that has nothing left reads what another one does, and counts it not.
    """
    TURNS: tl.constexpr = (RUNS + SPLIT - 1) // SPLIT
    group = tl.arange(0, 8 * SPLIT) // 8
    if i < RUNS // SPLIT:
        return (i * SPLIT + group) * 4, group >= 0
    elif i < TURNS:
        return tl.minimum(i * SPLIT + group, RUNS - 1) * 4, i * SPLIT + group < RUNS
    else:
        step = (i - TURNS) * SPLIT + group
        return RUNS * 4 + tl.minimum(step, TAIL - 1), step < TAIL


@triton.jit
def load(
    words: tl.tensor,
    entries: tl.tensor,
    i: tl.constexpr,
    zero: tl.tensor,
    RUNS: tl.constexpr,
    TAIL: tl.constexpr,
    OWNERS: tl.constexpr,
    SPLIT: tl.constexpr,
) -> tl.tensor:
    """Words [R, L, 4] and entries [R, L] of the steps of pass `i`: a tuple of each."""
    TURNS: tl.constexpr = (RUNS + SPLIT - 1) // SPLIT
    own = tl.arange(0, 8 * SPLIT) % 8 * OWNERS // 8
    step, _ = place(i, RUNS, TAIL, SPLIT)
    q: tl.tensor = ()
    for u in tl.static_range(4 if i < TURNS else 1):
        q = q + (
            tl.load(words + (step * 32 + u * 32)[None, :, None], eviction_policy="evict_first"),
        )
    if i < TURNS:
        at = (step * OWNERS + own * 4)[None, :, None] + tl.arange(0, 4)[None, None, :]
        return q, quarters(tl.load(entries[:, :, None] + at))
    else:
        # Written so that the compiler sees no neighbours: it would give a lane several of them, and
        # shared memory would carry them to the lanes that hold the words.
        run = step - RUNS * 4
        at = own + own * zero
        if TAIL == 2:
            at = own * 2 + run
        elif TAIL == 3:
            at = tl.where(run < 2, own * 2 + run, OWNERS * 2 + own)
        return q, (tl.load(entries + (RUNS * 4 * OWNERS + at)[None, :]),)
