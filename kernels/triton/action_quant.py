"""ActionQuant's encoder: a chunk of actions as 4-bit codes and float16 scales, ready to send.

The same bytes as `wmrt.model.action_quant.ActionQuant.pack`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from wmrt.kernels.triton import checks_ops
from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.arrays import arrays
from wmrt.kernels.triton.formulas import Grid
from wmrt.kernels.triton.library import FP_FUSION

#: Values of a group, the largest code, and packed bytes of a group: 8 of codes and a scale.
GROUP = 16
LEVELS = 7
GROUP_BYTES = GROUP // 2 + 2
GRID = Grid("batch")
ARRAYS = arrays("chunk input batch, STEPS, DIMS; out output batch, GROUPS, 10")


@triton.jit
def pack_kernel(
    chunk: tl.tensor,
    out: tl.tensor,
    STEPS: tl.constexpr,
    DIMS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    LEVELS: tl.constexpr,
) -> None:
    """One program, one chunk float32[STEPS, DIMS] -> uint8[GROUPS, GROUP / 2 + 2]."""
    program = tl.program_id(0)
    group = tl.arange(0, BLOCK)
    flat = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    source = (flat % STEPS) * DIMS + flat // STEPS  # dimension by dimension
    inside = flat < STEPS * DIMS
    value = tl.load(chunk + program * (STEPS * DIMS) + source, mask=inside, other=0.0)
    # Bit patterns order floats as integers do, with NaN on top; tl.max of floats would drop it.
    largest = tl.max(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    amax = largest.to(tl.float32, bitcast=True)
    scale = tl.div_rn(amax, tl.full(amax.shape, LEVELS, tl.float32)).to(tl.float16)
    wide = scale.to(tl.float32)
    step = tl.where(wide > 0, wide, 1.0)
    whole = libdevice.rint(tl.div_rn(value, tl.broadcast_to(step[:, None], value.shape)))
    bounded = tl.minimum(tl.maximum(whole, -LEVELS), LEVELS)
    codes = tl.where(whole == whole, bounded, 0.0).to(tl.int32) & 15
    low, high = tl.split(tl.reshape(codes, (BLOCK, GROUP // 2, 2)))
    row = out + (program * GROUPS + group) * (GROUP // 2 + 2)
    written = group < GROUPS
    pair = tl.arange(0, GROUP // 2)[None, :]
    tl.store(row[:, None] + pair, (low | (high << 4)).to(tl.uint8), mask=written[:, None])
    bits = scale.to(tl.int16, bitcast=True).to(tl.int32)
    tl.store(row + GROUP // 2, (bits & 255).to(tl.uint8), mask=written)
    tl.store(row + GROUP // 2 + 1, ((bits >> 8) & 255).to(tl.uint8), mask=written)


def action_pack(chunks: Tensor) -> Tensor:
    """Packed bytes uint8[..., G * 10] of chunks float32[..., H, A], G = ceil(H A / 16).

    Raises:
        UsageError: not contiguous float32 [..., H, A], or more than 16 * `checks_ops.MOST_GROUPS`
            values.
    """
    shape = chunks.shape
    count, groups = checks_ops.action_pack(chunks)
    out = torch.empty((*shape[:-2], groups * GROUP_BYTES), dtype=torch.uint8, device=chunks.device)
    if count:
        options = {"num_warps": 1, "enable_fp_fusion": FP_FUSION}
        pack_kernel[GRID(batch=count)](chunks, out, **_constants(*shape[-2:]), **options)
    return out


def _constants(steps: int, dims: int) -> dict[str, int]:
    groups = -(-steps * dims // GROUP)
    block = 1 << (groups - 1).bit_length()
    sizes = {"STEPS": steps, "DIMS": dims, "GROUPS": groups, "BLOCK": block}
    return {**sizes, "GROUP": GROUP, "LEVELS": LEVELS}


def aot_cases() -> list[AotCase]:
    """The shipped chunk, 8 x 2, and a long one of an arm, 16 x 7."""
    return [
        AotCase(
            name=f"action_pack.{steps}x{dims}",
            kernel=pack_kernel,
            signature={"chunk": "*fp32", "out": "*u8"},
            constants=_constants(steps, dims),
            warps=1,
            grid=GRID,
            arrays=ARRAYS,
        )
        for steps, dims in ((8, 2), (16, 7))
    ]
