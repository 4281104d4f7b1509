"""A 4-bit weight in layout ``gpu_gemv`` times int8 activations, added to the residual stream."""

from __future__ import annotations

import torch
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
from wmrt.kernels.triton.dependent import dependent_case, follow, options
from wmrt.kernels.triton.fused_checks import FORMATS, Matrix, check_residual
from wmrt.kernels.triton.gemv import (
    GRID,
    MATRIX,
    check_aligned,
    constants,
    entries_of,
    matrix_types,
    unit,
)
from wmrt.kernels.triton.gemv_rows import first_loads, sums_after
from wmrt.kernels.triton.plans import residual_plan
from wmrt.kernels.triton.variants import Variant

#: Vectors of a launch. Of rows of 6912, 16 of them take 255 registers and 13.6 instructions for a
#: weight; twice 8 take 96 and 15.5.
VECTORS = 8
ARRAYS = arrays(
    MATRIX + "codes input BATCH, 32 * STEPS; factors input BATCH, 8 * STEPS; x state BATCH, rows"
)


@triton.jit(do_not_specialize=["rows"])  # of one row, `zero` would be known to be 0
def gemv_residual(
    words: tl.tensor,
    entries: tl.tensor,
    codes: tl.tensor,
    factors: tl.tensor,
    x: tl.tensor,
    next_words: tl.tensor,
    next_scales: tl.tensor,
    rows: tl.tensor,
    scale: tl.tensor,
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
    """x[b, n] += scale * sum_k w[n, k] codes[b, k] for `ROWS` rows; arguments as in `gemv` and
    `ask_ahead`."""
    zero = tl.minimum(rows, 0)
    mine = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(mine, rows - 1)
    loaded = first_loads(words, entries, row, zero, STEPS, ENTRIES, OWNERS, SPLIT, CHUNK, AHEAD)
    follow(DEPENDENT)
    # As in `gemv`: the first lane stores, at places that show the compiler no neighbours.
    lane = tl.arange(0, 8 * SPLIT)
    at = (mine + mine * zero)[:, None] + (lane * zero)[None, :]
    first = (mine < rows)[:, None] & (lane == 0)[None, :]
    ahead: tl.tensor = ()
    if BATCH == 1:  # asked for now, it is there when the sum is; of more there is no room to hold
        ahead = ahead + (tl.load(x + at, mask=first, other=0.0),)
    acc = sums_after(
        loaded, words, entries, codes, factors, row, zero,
        STEPS, ENTRIES, FORMAT, OWNERS, BATCH, SPLIT, CHUNK, AHEAD, False, DECODE,
    )  # fmt: skip
    ask_ahead(next_words, next_scales, NEXT)
    for b in tl.static_range(BATCH):
        if BATCH == 1:
            before = ahead[0]
        else:
            before = tl.load(x + b * rows + at, mask=first, other=0.0)
        total = tl.broadcast_to(tl.sum(acc[b], 1)[:, None], at.shape)
        after = tl.fma(total, unit(FORMAT, False, DECODE) * scale, before)
        tl.store(x + b * rows + at, after, mask=first)


def launch(
    variant: Variant,
    codes: Tensor,
    factors: Tensor,
    matrix: Matrix,
    x: Tensor,
    next_words: Tensor | None = None,
    next_scales: Tensor | None = None,
) -> None:
    """x += matrix times activations, in place.

    Args:
        codes, factors: int8[B, K] and float32[B, K / 32] as `quantize_groups` gives them, B up to
            16, K padded to whole steps of 256.
        matrix: [N, K]. x: float32[B, N].
        next_words, next_scales: tensors of the matrix that is read next, which is asked into the
            cache; see `ahead`.

    Raises:
        UsageError, QuantizationError, UnsupportedError: as `check_residual`.
    """
    check_residual(codes, factors, matrix, x, next_words, next_scales)
    check_aligned(words=matrix.words, codes=codes)
    for start in range(0, len(codes), VECTORS):
        part = slice(start, start + VECTORS)
        # Of several launches the last one knows what comes next.
        next_ = (next_words, next_scales) if start + VECTORS >= len(codes) else (None, None)
        _launch(variant, codes[part], factors[part], matrix, x[part], next_)


def _launch(
    variant: Variant,
    codes: Tensor,
    factors: Tensor,
    matrix: Matrix,
    x: Tensor,
    next_: tuple[Tensor | None, Tensor | None],
) -> None:
    rows, batch = matrix.rows, len(codes)
    how = residual_plan(rows, matrix.columns, batch, variant.two_rows_from)
    grid = GRID(rows=rows, ROWS=how.rows)
    gemv_residual[grid](
        matrix.words,
        entries_of(matrix.lane_scales, matrix.format),
        codes.view(torch.int64),
        factors,
        x,
        *(matrix.words if t is None else t for t in next_),
        rows,
        matrix.global_scale,
        **constants(matrix.format, (rows, matrix.columns), batch, variant.int8, how),
        NEXT=share(*next_, variant.ahead_kib, grid[0], how.warps),
        num_warps=how.warps,
        **options(variant.dependent),
    )


def aot_cases() -> list[AotCase]:
    """The matrices out and down of the preset 1.3b: in every format, and for 4 and 8 vectors; and
    of `small`."""
    out, down = (2048, 2048), (2048, 6912)
    found = [_case(f"{format}.down.rows1", format, down, 1) for format in FORMATS]
    found += [_case(f"nvfp4.down.rows{rows}", "nvfp4", down, rows) for rows in (4, VECTORS)]
    found += [_case(f"{format}.out.rows1", format, out, 1) for format in ("nvfp4", "int4-g128")]
    found += [_case("nvfp4.out.small", "nvfp4", (256, 256), 1)]
    found += [_case("nvfp4.down.small", "nvfp4", (256, 768), 1)]
    ahead = [("out", out, (13824, 2048)), ("down", down, (3072, 2048))]
    found += [ahead_case(_case(f"nvfp4.{n}.rows1", "nvfp4", s, 1), to, 128) for n, s, to in ahead]
    return [*found, *(dependent_case(case, early=("words", "entries")) for case in found[-2:])]


def _case(name: str, format: str, shape: tuple[int, int], batch: int) -> AotCase:
    """A case of the plan for large devices."""
    how = residual_plan(*shape, batch, two_rows_from=4096)
    kinds = {**matrix_types(format), **next_types(), "codes": "*i64"}
    kinds |= {"factors": "*fp32", "x": "*fp32"}
    return AotCase(
        name=f"gemv_residual.{name}",
        kernel=gemv_residual,
        signature={**kinds, "rows": "i32", "scale": "fp32"},
        constants={**constants(format, shape, batch, "prmt", how), **PLAIN},
        warps=how.warps,
        grid=GRID,
        arrays={**ARRAYS, **next_arrays(())},
        scalars={"rows": shape[0]},
        aligned=tuple(kinds),
        weights_per_program=how.rows * shape[1],
        instructions=("IDP.4A.S8.S8",),
        slow=batch > 4,
    )
