"""RMSNorm in front of a matrix, and what follows sums of rows that come in pairs.

How a program gets normed int8 activations without a launch for it: each computes them for itself
and hands them to its lanes through memory that is its own, some kilobytes that stay in the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.arrays import Array, arrays
from wmrt.kernels.triton.dependent import dependent_case, follow, options
from wmrt.kernels.triton.formulas import Grid, parsed
from wmrt.kernels.triton.fused_checks import Matrix
from wmrt.kernels.triton.gemv import check_aligned
from wmrt.kernels.triton.gemv_rows import first_loads, pin, sums_after
from wmrt.kernels.triton.norm import quantize_groups, row_scale
from wmrt.kernels.triton.plans import normed_block
from wmrt.kernels.triton.variants import Variant
from wmrt.quant.layouts.base import STEP

GRID = Grid("BATCH")
ARRAYS = arrays("x input BATCH, K; norm weights K; work output BATCH * STEPS * 288")


@triton.jit
def ready(
    x: tl.tensor,
    norm: tl.tensor,
    work: tl.tensor,
    eps: tl.tensor,
    zero: tl.tensor,
    K: tl.constexpr,
    STEPS: tl.constexpr,
    BATCH: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> tl.tensor:
    """Where `row_sums` finds its activations: codes as int64[BATCH, 32 * STEPS] and factors.

    With `BLOCK`, the power of two that holds a row, this program norms x[BATCH, K] into its own
    part of `work` first; with 0, `work` holds them already, for all programs.
    """
    PART: tl.constexpr = BATCH * STEPS * 288
    follow(DEPENDENT)
    if BLOCK > 0:
        pin(zero)
        work += tl.program_id(0) * PART
    factors = (work + BATCH * STEPS * 256).to(tl.pointer_type(tl.float32))
    if BLOCK > 0:
        for b in tl.static_range(BATCH):
            to, steps = work + b * (STEPS * 256), factors + b * (STEPS * 8)
            norm_codes(x + b * K, norm, to, steps, eps, K, STEPS * 256, BLOCK)
        tl.debug_barrier()
    return work.to(tl.pointer_type(tl.int64)), factors


def scratch(grid: Grid, batch: int) -> Array:
    """`work` of a launch of these programs, in bytes: what each norms for itself, or, from two
    vectors on, what the launch before has normed for all."""
    each = parsed("BATCH * STEPS * 288")
    if batch > 1:
        return Array("input", (each,))
    return Array("scratch", (("mul", grid.axes[0], each),))


@triton.jit
def normed_sums(
    words: tl.tensor,
    entries: tl.tensor,
    x: tl.tensor,
    norm: tl.tensor,
    work: tl.tensor,
    rows: tl.tensor,
    zero: tl.tensor,
    eps: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    ENTRIES: tl.constexpr,
    FORMAT: tl.constexpr,
    OWNERS: tl.constexpr,
    BATCH: tl.constexpr,
    SPLIT: tl.constexpr,
    CHUNK: tl.constexpr,
    AHEAD: tl.constexpr,
    DECODE: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> tl.tensor:
    """`row_sums` of rows `rows` with RMSNorm(x): weights are asked for, then x is waited for and
    normed, then they are multiplied. Arguments as in `gemv` and `ready`."""
    loaded = first_loads(words, entries, rows, zero, STEPS, ENTRIES, OWNERS, SPLIT, CHUNK, AHEAD)
    codes, factors = ready(x, norm, work, eps, zero, K, STEPS, BATCH, BLOCK, DEPENDENT)
    return sums_after(
        loaded, words, entries, codes, factors, rows, zero,
        STEPS, ENTRIES, FORMAT, OWNERS, BATCH, SPLIT, CHUNK, AHEAD, False, DECODE,
    )  # fmt: skip


@triton.jit
def norm_codes(
    x: tl.tensor,
    norm: tl.tensor,
    codes: tl.tensor,
    factors: tl.tensor,
    eps: tl.tensor,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """RMSNorm of the row at x[K] as int8 codes [WIDTH] and float32 factors [WIDTH / 32].

    The codes are of x times the norm's weights, the row's scale goes into the factors: the lanes
    have their codes while the sum of squares is still on its way.
    """
    at, group = tl.arange(0, BLOCK), tl.arange(0, BLOCK // 32)
    value = tl.load(x + at, mask=at < K, other=0.0)
    weight = tl.load(norm + at, mask=at < K, other=0.0)
    whole, steps = quantize_groups(value * weight, 32)
    tl.store(codes + at, tl.reshape(whole, (BLOCK,)), mask=at < WIDTH)
    tl.store(factors + group, steps * row_scale(value, K, eps), mask=group < WIDTH // 32)


@triton.jit
def pair_sums(acc: tl.tensor) -> tl.tensor:
    """Lanes' sums [2 P, L], the rows of a pair P apart -> sums of the first and the second rows
    [P], which every lane holds. Both are rows of one lane: nothing moves."""
    pairs = tl.reshape(acc, (2, acc.shape[0] // 2, acc.shape[1]))
    first, second = tl.split(tl.permute(pairs, (1, 2, 0)))
    return tl.sum(first, 1), tl.sum(second, 1)


@triton.jit
def norm_rows_kernel(
    x: tl.tensor,
    norm: tl.tensor,
    work: tl.tensor,
    eps: tl.tensor,
    K: tl.constexpr,
    STEPS: tl.constexpr,
    BATCH: tl.constexpr,
    BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """One program, one row of x[BATCH, K], into what `ready` finds in `work`."""
    follow(DEPENDENT)
    row = tl.program_id(0)
    factors = (work + BATCH * STEPS * 256).to(tl.pointer_type(tl.float32)) + row * (STEPS * 8)
    codes = work + row * (STEPS * 256)
    norm_codes(x + row * K, norm, codes, factors, eps, K, STEPS * 256, BLOCK)


def prepare(
    variant: Variant,
    x: Tensor,
    norm: Tensor,
    eps: float,
    matrix: Matrix,
    work: Tensor,
    warps: int,
) -> int:
    """`BLOCK` of the launch that multiplies RMSNorm(x); where it does not norm for itself, the
    launch that does it. Errors as `check_aligned`."""
    check_aligned(words=matrix.words, work=work)
    block = normed_block(x.shape[1], len(x))
    if not block:
        norm_rows(x, norm, eps, work, matrix.columns, warps, variant.dependent)
    return block


def norm_rows(
    x: Tensor,
    norm: Tensor,
    eps: float,
    work: Tensor,
    columns: int,
    warps: int,
    dependent: bool,
) -> None:
    """The norm of x[B, K] for a matrix of `columns`, in a launch of its own.

    `warps` as in the launch that follows: they decide in which order a row is summed, and a vector
    is to have the same bits whether its program norms it or this.
    """
    batch, width = x.shape
    norm_rows_kernel[GRID(BATCH=batch)](
        x,
        norm,
        work,
        eps,
        K=width,
        STEPS=columns // STEP,
        BATCH=batch,
        BLOCK=max(STEP, triton.next_power_of_2(width)),
        num_warps=warps,
        **options(dependent),
    )


def aot_cases() -> list[AotCase]:
    """Rows of the presets 1.3b and `small`, by the warps of the two plans."""
    found = [_case(2048, 8), _case(2048, 16), _case(256, 4), _case(256, 8)]
    return [*found, dependent_case(found[0])]


def _case(width: int, warps: int) -> AotCase:
    sizes = {"K": width, "STEPS": width // STEP, "BATCH": 4, "BLOCK": width, "DEPENDENT": False}
    kinds = {"x": "*fp32", "norm": "*fp32", "work": "*i8", "eps": "fp32"}
    return AotCase(
        f"norm_rows.{width}.warps{warps}", norm_rows_kernel, kinds, sizes, warps, GRID, ARRAYS
    )
