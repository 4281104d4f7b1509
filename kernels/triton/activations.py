"""Activations as `gemv` takes them: int8 with one scale for 32, or float32 by lane."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wmrt.kernels.triton import checks_ops
from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.arrays import arrays
from wmrt.kernels.triton.formulas import Grid
from wmrt.kernels.triton.library import FP_FUSION
from wmrt.quant.activations import GROUP
from wmrt.quant.layouts.base import STEP

#: Groups of 32 in a program.
GROUPS = 32
INT8_GRID = Grid("batch", "ceil_div(width, 32 * GROUPS)")
LANE_GRID = Grid("batch", "ceil_div(width, COUNT)")
#: x has any strides.
INT8_ARRAYS = arrays(
    "x input batch, columns; codes output batch, width; factors output batch, ceil_div(width, 32)"
)
LANE_ARRAYS = arrays("x input batch, columns; out output batch, width")


@triton.jit
def int8_groups(
    x: tl.tensor,
    codes: tl.tensor,
    factors: tl.tensor,
    columns: tl.tensor,
    row_stride: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    GROUPS: tl.constexpr,
) -> None:
    """One row and `GROUPS` groups of 32: scale = amax / 127, code = x / scale, half to even.

    As `wmrt.quant.activations.quantize_groups`, bit for bit, where amax is a normal number; NaN and
    infinity make the scale NaN or infinite and the code 0. Behind `columns` x is 0.
    """
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    value = tl.load(x + row * row_stride + at * stride, mask=at < columns, other=0.0)
    value = value.to(tl.float32)
    # Bits of magnitudes compare as the magnitudes do, and NaN is above infinity: max keeps it.
    size = tl.max(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    factor = tl.div_rn(size.to(tl.float32, bitcast=True), 127.0)
    quotient = tl.div_rn(value, tl.broadcast_to(factor[:, None], value.shape))
    quotient = tl.where(quotient == quotient, quotient, 0.0)
    quotient = tl.minimum(tl.maximum(quotient, -127.0), 127.0)
    # 1.5 * 2^23: adding it rounds to an integer, half to even, in the lowest bits.
    code = (quotient + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)
    inside = at < width
    tl.store(codes + row * width + at, code, mask=inside)
    tl.store(factors + row * (width // 32) + group, factor, mask=group * 32 < width)


@triton.jit
def lane_order(
    x: tl.tensor,
    out: tl.tensor,
    columns: tl.tensor,
    row_stride: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    COUNT: tl.constexpr,
) -> None:
    """One row and `COUNT` places of it, rounded to bfloat16: see `lane_floats`."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * COUNT + tl.arange(0, COUNT)
    at = place // 32 * 32 + place % 4 * 8 + place % 32 // 4
    value = tl.load(x + row * row_stride + at * stride, mask=at < columns, other=0.0)
    value = value.to(tl.float32).to(tl.bfloat16).to(tl.float32)
    tl.store(out + row * width + place, value, mask=place < width)


def int8_codes(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """float[B, K], any strides -> int8[B, width] and float32[B, width / 32], 0 behind K.

    Raises `UsageError`: other tensors, or a width that is no multiple of 32 or less than K.
    """
    checks_ops.quantized(x, width)
    codes = x.new_empty(len(x), width, dtype=torch.int8)
    factors = x.new_empty(len(x), width // GROUP, dtype=torch.float32)
    if len(x):
        int8_groups[INT8_GRID(batch=len(x), width=width, GROUPS=GROUPS)](
            x,
            codes,
            factors,
            x.shape[1],
            *x.stride(),
            width,
            GROUPS=GROUPS,
            num_warps=4,
            enable_fp_fusion=FP_FUSION,
        )
    return codes, factors


def lane_floats(x: Tensor, width: int) -> Tensor:
    """float[B, K], any strides -> float32[B, width] of bfloat16 values, 0 behind K.

    Of 32 values of a lane, number 8 w + p (word w, place p in it) lies at 4 p + w: one load brings
    what the four words of a lane need in one place.
    """
    out = x.new_empty(len(x), width, dtype=torch.float32)
    if len(x):
        lane_order[LANE_GRID(batch=len(x), width=width, COUNT=4 * STEP)](
            x,
            out,
            x.shape[1],
            *x.stride(),
            width,
            COUNT=4 * STEP,
            num_warps=4,
            enable_fp_fusion=FP_FUSION,
        )
    return out


def aot_cases() -> list[AotCase]:
    """Both kernels on float32."""
    strides = dict.fromkeys(("columns", "row_stride", "stride", "width"), "i32")
    return [
        AotCase(
            name="int8_groups",
            kernel=int8_groups,
            signature={"x": "*fp32", "codes": "*i8", "factors": "*fp32", **strides},
            constants={"GROUPS": GROUPS},
            grid=INT8_GRID,
            arrays=INT8_ARRAYS,
        ),
        AotCase(
            name="lane_order",
            kernel=lane_order,
            signature={"x": "*fp32", "out": "*fp32", **strides},
            constants={"COUNT": 4 * STEP},
            grid=LANE_GRID,
            arrays=LANE_ARRAYS,
        ),
    ]
