"""RMSNorm, queries, keys and values of it, rotary embedding, and the store into the ring."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from wmrt.kernels.triton.ahead import (
    PLAIN,
    ahead_case,
    ask_ahead,
    next_arrays,
    next_types,
    share,
)
from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.arrays import arrays
from wmrt.kernels.triton.dependent import dependent_case, options
from wmrt.kernels.triton.formulas import Grid
from wmrt.kernels.triton.fused_checks import FORMATS, Matrix, check_qkv
from wmrt.kernels.triton.gemv import constants, entries_of, matrix_types, unit
from wmrt.kernels.triton.normed import normed_sums, pair_sums, prepare, scratch
from wmrt.kernels.triton.plans import normed_block, qkv_plan
from wmrt.kernels.triton.variants import Variant

GRID = Grid("ceil_div((HEADS + 2 * GROUPS) * 2 * HALF, ROWS)")
#: `work`: see `normed.scratch`.
ARRAYS = arrays(
    "words weights:gpu_gemv.words (HEADS + 2 * GROUPS) * 2 * HALF, 32 * STEPS;"
    "entries weights:gpu_gemv.lane_scales (HEADS + 2 * GROUPS) * 2 * HALF, ENTRIES;"
    "x input BATCH, K; norm weights K; cos input BATCH, HALF; sin input BATCH, HALF;"
    "slots input BATCH, SLOTS; q output BATCH, HEADS, 2 * HALF;"
    "keys state BATCH, RING, GROUPS, 2 * HALF; values state BATCH, RING, GROUPS, 2 * HALF"
)


@triton.jit(do_not_specialize=["rows"])  # of one row, `zero` would be known to be 0
def norm_qkv_rope_store(
    words: tl.tensor,
    entries: tl.tensor,
    x: tl.tensor,
    norm: tl.tensor,
    work: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    slots: tl.tensor,
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    next_words: tl.tensor,
    next_scales: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    scale: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HALF: tl.constexpr,
    RING: tl.constexpr,
    SLOTS: tl.constexpr,
    STEPS: tl.constexpr,
    ENTRIES: tl.constexpr,
    FORMAT: tl.constexpr,
    OWNERS: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    AHEAD: tl.constexpr,
    DECODE: tl.constexpr,
    DEPENDENT: tl.constexpr,
    NEXT: tl.constexpr,
) -> None:
    """`ROWS` / 2 pairs (i, i + HALF) of rows of heads a program; see `launch`.

    Args:
        words, entries, scale, STEPS and what follows it: as in `gemv`.
        K, BLOCK, work: as in `ready`.
        HEADS, GROUPS: heads of q, and of keys and of values; 2 * HALF is their size.
        RING, SLOTS: W, or 0 where slots are of all rings; and columns of slots.
        next_words, next_scales, NEXT: as in `ask_ahead`.
    """
    zero = tl.minimum(rows, 0)
    place = tl.arange(0, ROWS)
    pair = tl.program_id(0) * (ROWS // 2) + place % (ROWS // 2)
    pair = tl.minimum(pair, (HEADS + 2 * GROUPS) * HALF - 1)
    row = pair // HALF * (2 * HALF) + pair % HALF + place // (ROWS // 2) * HALF
    acc = normed_sums(
        words, entries, x, norm, work, row, zero, eps, K, BLOCK,
        STEPS, ENTRIES, FORMAT, OWNERS, BATCH, SPLIT, CHUNK, AHEAD, DECODE, DEPENDENT,
    )  # fmt: skip
    ask_ahead(next_words, next_scales, NEXT)
    mine = tl.program_id(0) * (ROWS // 2) + tl.arange(0, ROWS // 2)
    head, at = mine // HALF, mine % HALF
    factor = unit(FORMAT, False, DECODE) * scale
    lane = tl.arange(0, 8 * SPLIT)
    # As in `gemv`: the first lane stores, at places that show the compiler no neighbours.
    spread = (mine * zero)[:, None] + (lane * zero)[None, :]
    first_lane = (mine < (HEADS + 2 * GROUPS) * HALF)[:, None] & (lane == 0)[None, :]
    for b in tl.static_range(BATCH):
        one, two = pair_sums(acc[b])
        one, two = one * factor, two * factor
        c, s = tl.load(cos + b * HALF + at), tl.load(sin + b * HALF + at)
        turned = head < HEADS + GROUPS
        low = tl.where(turned, one * c - two * s, one)
        high = tl.where(turned, one * s + two * c, two)
        slot = b * RING + tl.load(slots + b * SLOTS)
        key = keys + (slot * GROUPS + head - HEADS) * (2 * HALF)
        value = values + (slot * GROUPS + head - HEADS - GROUPS) * (2 * HALF)
        to = tl.where(head < HEADS, q + (b * HEADS + head) * (2 * HALF), key)
        to = (tl.where(turned, to, value) + at)[:, None] + spread
        tl.store(to, tl.broadcast_to(low[:, None], to.shape), mask=first_lane)
        tl.store(to + HALF, tl.broadcast_to(high[:, None], to.shape), mask=first_lane)


def launch(
    variant: Variant,
    x: Tensor,
    norm: Tensor,
    eps: float,
    matrix: Matrix,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    work: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    next_words: Tensor | None = None,
    next_scales: Tensor | None = None,
) -> None:
    """Queries, keys and values of RMSNorm(x), queries and keys after RoPE.

    Args:
        x: float32[B, d], B up to 16. norm: float32[d], the norm's weights.
        matrix: [(H + 2 KV) hd, d]: heads of q, of keys, of values.
        cos, sin: float32[B, hd / 2] of this step; pairs are (i, i + hd / 2) of a head.
        slots: int32[B, k + 1], of which the first is written.
        work: int8 scratch of `plans.qkv_work` bytes.
        q: float32[B, H, hd]. keys, values: float32[B, W, KV, hd], or [S, KV, hd]: all rings behind
            one another, which slots then count over.
        next_words, next_scales: tensors of the matrix that is read next, which is asked into the
            cache; see `ahead`.

    Raises:
        UsageError, QuantizationError, UnsupportedError: as `check_qkv`.
    """
    check_qkv(x, norm, matrix, cos, sin, slots, work, q, keys, values, next_words, next_scales)
    batch, width = x.shape
    how = qkv_plan(matrix.rows, matrix.columns, batch)
    block = prepare(variant, x, norm, eps, matrix, work, how.warps)
    sizes = _sizes(width, block, q.shape[1], keys.shape, slots.shape[1])
    grid = GRID(ROWS=how.rows, **sizes)
    # Two borders lie before the next matrix, and attention, which reads none: twice the bytes.
    following = share(next_words, next_scales, 2 * variant.ahead_kib, grid[0], how.warps)
    norm_qkv_rope_store[grid](
        *(matrix.words, entries_of(matrix.lane_scales, matrix.format)),
        *(x, norm, work, cos, sin, slots, q, keys, values),
        *(matrix.words if t is None else t for t in (next_words, next_scales)),
        *(matrix.rows, eps, matrix.global_scale),
        **sizes,
        **constants(matrix.format, (matrix.rows, matrix.columns), batch, variant.int8, how),
        NEXT=following,
        num_warps=how.warps,
        **options(variant.dependent),
    )


def _sizes(width: int, block: int, heads: int, ring: Sequence[int], slots: int) -> dict[str, int]:
    """Constants of the kernel that are not of the matrix; `ring`: shape of the keys."""
    return {
        "K": width,
        "BLOCK": block,
        "HEADS": heads,
        "GROUPS": ring[-2],
        "HALF": ring[-1] // 2,
        "RING": ring[1] if len(ring) == 4 else 0,
        "SLOTS": slots,
    }


def aot_cases() -> list[AotCase]:
    """The matrix of the preset 1.3b in every format and for 4, 8 and 16 vectors; and of `small`."""
    wide, small = (16, 4, 128, 2048), (4, 2, 64, 256)
    found = [_case(f"{format}.rows1", format, wide, 1) for format in FORMATS]
    found += [_case(f"nvfp4.rows{rows}", "nvfp4", wide, rows) for rows in (4, 8, 16)]
    found.append(_case("nvfp4.small", "nvfp4", small, 1))
    found.append(ahead_case(found[0], (2048, 2048), 96))
    return [*found, dependent_case(found[-1], early=("words", "entries"))]


def _case(name: str, format: str, of: tuple[int, int, int, int], batch: int) -> AotCase:
    """A case of heads, heads of keys, their size, and columns."""
    heads, groups, size, width = of
    shape = ((heads + 2 * groups) * size, width)
    how = qkv_plan(*shape, batch)
    kinds = {**matrix_types(format), **next_types(), "work": "*i8", "slots": "*i32"}
    kinds |= dict.fromkeys(("x", "norm", "cos", "sin", "q", "keys", "values"), "*fp32")
    sizes = _sizes(width, normed_block(width, batch), heads, (batch, 64, groups, size), 9)
    return AotCase(
        name=f"norm_qkv_rope_store.{name}",
        kernel=norm_qkv_rope_store,
        signature={**kinds, "rows": "i32", "eps": "fp32", "scale": "fp32"},
        constants={**constants(format, shape, batch, "prmt", how), **sizes, **PLAIN},
        warps=how.warps,
        grid=GRID,
        arrays={**ARRAYS, "work": scratch(GRID, batch), **next_arrays(())},
        scalars={"rows": shape[0]},
        aligned=tuple(kinds),
        weights_per_program=how.rows * width,
        instructions=("IDP.4A.S8.S8",),
        slow=batch > 4,
    )
