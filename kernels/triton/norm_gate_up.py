"""RMSNorm, the gated half of a SwiGLU layer, and its result as int8 in groups of 32."""

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
from wmrt.kernels.triton.dependent import dependent_case, options
from wmrt.kernels.triton.formulas import Grid
from wmrt.kernels.triton.fused_checks import FORMATS, Matrix, check_gate_up
from wmrt.kernels.triton.gemv import constants, entries_of, matrix_types, unit
from wmrt.kernels.triton.norm import quantize_groups
from wmrt.kernels.triton.normed import normed_sums, pair_sums, prepare, scratch
from wmrt.kernels.triton.plans import gate_up_plan, normed_block, normed_bytes
from wmrt.kernels.triton.variants import Variant
from wmrt.quant.activations import GROUP
from wmrt.quant.layouts.base import STEP

GRID = Grid("ceil_div(HIDDEN, 32)")
#: `work`: see `normed.scratch`.
ARRAYS = arrays(
    "words weights:gpu_gemv.words 2 * HIDDEN, 32 * STEPS;"
    "entries weights:gpu_gemv.lane_scales 2 * HIDDEN, ENTRIES;"
    "x input BATCH, K; norm weights K; results scratch ceil_div(HIDDEN, 32), BATCH, 32;"
    "codes output BATCH, width; factors output BATCH, ceil_div(width, 32)"
)


@triton.jit(do_not_specialize=["width"])  # of 1, `zero` would be known to be 0
def norm_gate_up(
    words: tl.tensor,
    entries: tl.tensor,
    x: tl.tensor,
    norm: tl.tensor,
    work: tl.tensor,
    results: tl.tensor,
    codes: tl.tensor,
    factors: tl.tensor,
    next_words: tl.tensor,
    next_scales: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    scale: tl.tensor,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    HIDDEN: tl.constexpr,
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
    """32 results h = silu(gate) * up a program, of rows h and h + HIDDEN; `ROWS` is 64.

    Args:
        words, entries, scale, STEPS and what follows it: as in `gemv`.
        K, BLOCK, work: as in `ready`.
        results: float32 scratch, [programs, BATCH, 32].
        codes, factors, width: int8[BATCH, width] and float32[BATCH, width / 32].
        next_words, next_scales, NEXT: as in `ask_ahead`.
        HIDDEN: results. The last group is filled with zeros.
    """
    zero = tl.minimum(width, 0)
    group = tl.program_id(0)
    place = tl.arange(0, ROWS)
    row = tl.minimum(group * 32 + place % 32, HIDDEN - 1) + place // 32 * HIDDEN
    acc = normed_sums(
        words, entries, x, norm, work, row, zero, eps, K, BLOCK,
        STEPS, ENTRIES, FORMAT, OWNERS, BATCH, SPLIT, CHUNK, AHEAD, DECODE, DEPENDENT,
    )  # fmt: skip
    ask_ahead(next_words, next_scales, NEXT)
    h, lane = tl.arange(0, 32), tl.arange(0, 8 * SPLIT)
    # As in `gemv`: the first lane stores, at places that show the compiler no neighbours.
    to = (h + h * zero)[:, None] + (lane * zero)[None, :]
    factor = unit(FORMAT, False, DECODE) * scale
    results += group * (BATCH * 32)
    for b in tl.static_range(BATCH):
        gate, up = pair_sums(acc[b])
        gate, up = gate * factor, up * factor
        value = gate / (1.0 + tl.exp(-gate)) * up
        value = tl.where(group * 32 + h < HIDDEN, value, 0.0)
        mask = (lane == 0)[None, :] & (h >= 0)[:, None]
        tl.store(results + b * 32 + to, tl.broadcast_to(value[:, None], to.shape), mask=mask)
    tl.debug_barrier()
    store_groups(results, codes + group * 32, factors + group, width, BATCH)


@triton.jit
def store_groups(
    results: tl.tensor,
    codes: tl.tensor,
    factors: tl.tensor,
    width: tl.tensor,
    BATCH: tl.constexpr,
) -> None:
    """float32[BATCH, 32] as codes at codes + b * width and factors at factors + b * width / 32."""
    ROOM: tl.constexpr = triton.next_power_of_2(BATCH)
    at, b = tl.arange(0, ROOM * 32), tl.arange(0, ROOM)
    value = tl.load(results + at, mask=at < BATCH * 32, other=0.0)
    whole, steps = quantize_groups(value, 32)
    to = codes + at // 32 * width + at % 32
    tl.store(to, tl.reshape(whole, (ROOM * 32,)), mask=at < BATCH * 32)
    tl.store(factors + b * (width // 32), steps, mask=b < BATCH)


def launch(
    variant: Variant,
    x: Tensor,
    norm: Tensor,
    eps: float,
    matrix: Matrix,
    work: Tensor,
    codes: Tensor,
    factors: Tensor,
    next_words: Tensor | None = None,
    next_scales: Tensor | None = None,
) -> None:
    """silu(gate) * up of RMSNorm(x) as int8 in groups of 32.

    Args:
        x: float32[B, d], B up to 16. norm: float32[d], the norm's weights.
        matrix: [2 * ffn, d], all gates, then all ups.
        work: int8 scratch of `plans.gate_up_work` bytes.
        codes, factors: int8[B, width] and float32[B, width / 32], written up to the end of the
            last group that `ffn` reaches; the rest of `width` is left as it is.
        next_words, next_scales: tensors of the matrix that is read next, which is asked into the
            cache; see `ahead`.

    Raises:
        UsageError, QuantizationError, UnsupportedError: as `check_gate_up`.
    """
    check_gate_up(x, norm, matrix, work, codes, factors, next_words, next_scales)
    batch, width = x.shape
    how = gate_up_plan(matrix.columns, batch)
    block = prepare(variant, x, norm, eps, matrix, work, how.warps)
    (groups,) = GRID(HIDDEN=matrix.rows // 2)
    start = (groups if block else 1) * normed_bytes(matrix.columns, batch)
    results = work[start : start + groups * batch * GROUP * 4].view(torch.float32)
    norm_gate_up[(groups,)](
        *(matrix.words, entries_of(matrix.lane_scales, matrix.format)),
        *(x, norm, work, results, codes, factors),
        *(matrix.words if t is None else t for t in (next_words, next_scales)),
        *(codes.shape[1], eps, matrix.global_scale),
        K=width,
        BLOCK=block,
        HIDDEN=matrix.rows // 2,
        **constants(matrix.format, (matrix.rows, matrix.columns), batch, variant.int8, how),
        NEXT=share(next_words, next_scales, variant.ahead_kib, groups, how.warps),
        num_warps=how.warps,
        **options(variant.dependent),
    )


def aot_cases() -> list[AotCase]:
    """The matrix of the preset 1.3b in every format and for 4, 8 and 16 vectors; and of `small`."""
    wide, small = (13824, 2048), (1536, 256)
    found = [_case(f"{format}.rows1", format, wide, 1) for format in FORMATS]
    found += [_case(f"nvfp4.rows{rows}", "nvfp4", wide, rows) for rows in (4, 8, 16)]
    found.append(_case("nvfp4.small", "nvfp4", small, 1))
    found.append(ahead_case(found[0], (2048, 6912), 216))
    return [*found, dependent_case(found[-1], early=("words", "entries"))]


def _case(name: str, format: str, shape: tuple[int, int], batch: int) -> AotCase:
    how = gate_up_plan(shape[1], batch)
    kinds = {**matrix_types(format), **next_types(), "work": "*i8", "codes": "*i8"}
    kinds |= dict.fromkeys(("x", "norm", "results", "factors"), "*fp32")
    sizes = {"K": shape[1], "BLOCK": normed_block(shape[1], batch), "HIDDEN": shape[0] // 2}
    return AotCase(
        name=f"norm_gate_up.{name}",
        kernel=norm_gate_up,
        signature={**kinds, "width": "i32", "eps": "fp32", "scale": "fp32"},
        constants={**constants(format, shape, batch, "prmt", how), **sizes, **PLAIN},
        warps=how.warps,
        grid=GRID,
        arrays={**ARRAYS, "work": scratch(GRID, batch), **next_arrays(())},
        scalars={"width": -(-shape[0] // 2 // STEP) * STEP},
        aligned=tuple(kinds),
        weights_per_program=how.rows * shape[1],
        instructions=("IDP.4A.S8.S8",),
        slow=batch > 4,
    )
