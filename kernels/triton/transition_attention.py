"""Attention of one step: the jump softmax over the slots that were chosen, in one launch.

See `wmrt.model.transition`: every head reads the current slot and the k best past ones and nothing
else of the ring.
"""

from __future__ import annotations

import math
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from wmrt.kernels.triton import checks_heads as checks
from wmrt.kernels.triton.aot_cases import AotCase, named
from wmrt.kernels.triton.arrays import arrays, not_followed
from wmrt.kernels.triton.checks_heads import Attention
from wmrt.kernels.triton.dependent import dependent_case, follow, options
from wmrt.kernels.triton.formulas import Grid
from wmrt.kernels.triton.norm import quantize_groups
from wmrt.quant.activations import GROUP

GRID = Grid("HEADS", "batch")
ARRAYS = arrays(
    "q input batch, HEADS, DIM; keys input batch, WINDOW, KV, DIM;"
    "values input batch, WINDOW, KV, DIM; slots input batch, COUNT; bias input batch, COUNT;"
    "out output batch, WIDTH; factors output batch, ceil_div(WIDTH, GROUP)"
)


@triton.jit
def jump_softmax(logits: tl.tensor, read: tl.tensor, value: tl.tensor) -> tl.tensor:
    """Softmax of logits [T, R, 1] over both T and R, 0 where not `read`, times value [T, R, D]."""
    logits = tl.where(read, logits, float("-inf"))
    # Not of NaN, which its own weight carries on.
    numbers = tl.where(logits == logits, logits, float("-inf"))
    largest = tl.max(tl.max(numbers, 0, keep_dims=True), 1, keep_dims=True)
    weight = tl.where(read, tl.exp(logits - largest), 0.0)
    summed, total = tl.sum(weight * value, 0), tl.sum(weight, 0)
    # Both in one reduction over warps: each costs two barriers.
    summed, total = tl.split(tl.sum(tl.join(summed, tl.broadcast_to(total, summed.shape)), 0))
    return tl.div_rn(summed, total)


@triton.jit
def store_head(
    attended: tl.tensor,
    own: tl.tensor,
    d: tl.tensor,
    out: tl.tensor,
    factors: tl.tensor,
    place: tl.tensor,
    DIM: tl.constexpr,
    QUANTIZE: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """attended [BLOCK] to `place` of `out`, as it is or as codes with scales in `factors`, by the
    lanes [1, R, BLOCK] that `own` it."""
    if QUANTIZE:
        codes, scales = quantize_groups(attended, GROUP)
        codes = tl.broadcast_to(tl.reshape(codes, (1, 1, attended.shape[0])), own.shape)
        tl.store(out + place + d, codes, mask=own)
        group = tl.arange(0, attended.shape[0] // GROUP)
        tl.store(factors + place // GROUP + group, scales, mask=group < DIM // GROUP)
    else:
        tl.store(out + place + d, tl.broadcast_to(attended[None, None, :], own.shape), mask=own)


@triton.jit
def transition_attention_kernel(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    slots: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    factors: tl.tensor,
    HEADS: tl.constexpr,
    KV: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    COUNT: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SCALE: tl.constexpr,
    WIDTH: tl.constexpr,
    QUANTIZE: tl.constexpr,
    GROUP: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """One program, one head of one robot: float32[DIM], or int8 codes and scales of its groups.

    All slots are in the program, so that every sum over them has one order. Heads that share keys
    read them each for themselves: a row is 512 bytes of L2, and at batch 1 all of it is 16 programs
    that wait for two loads one after the other. What a slot holds that was not written yet is not
    read.

    Tensors are [.., ROWS, DIM]: a turn of all warps brings ROWS whole rows, and each lane the part
    of the query that it needs. With other shapes keys and values went through shared memory.
    """
    head, robot = tl.program_id(0), tl.program_id(1).to(tl.int64)
    r = tl.arange(0, ROWS)[None, :, None]
    n = tl.arange(0, SLOTS // ROWS)[:, None, None] * ROWS + r
    d = r * 0 + tl.arange(0, BLOCK)[None, None, :]
    follow(DEPENDENT)
    slot = tl.load(slots + robot * COUNT + n, mask=n < COUNT, other=0)
    gate = tl.load(bias + robot * COUNT + n, mask=n < COUNT, other=float("-inf"))
    read = gate != float("-inf")
    row = ((robot * WINDOW + slot) * KV + head // (HEADS // KV)) * DIM
    inside = read & (d < DIM)
    key = tl.load(keys + row + d, mask=inside, other=0.0)
    value = tl.load(values + row + d, mask=inside, other=0.0)
    query = tl.load(q + (robot * HEADS + head) * DIM + d, mask=d < DIM, other=0.0)
    attended = jump_softmax(tl.sum(key * query, 2, keep_dims=True) * SCALE + gate, read, value)
    own = (r == 0) & (d < DIM)  # every row of lanes holds it, the first one stores it
    store_head(attended, own, d, out, factors, robot * WIDTH + head * DIM, DIM, QUANTIZE, GROUP)


def transition_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    bias: Tensor,
    attended: Tensor,
    *,
    dependent: bool = False,
) -> None:
    """What every head gathers from the ring, into `attended` float32[B, H, hd].

    Args:
        q: float32[B, H, hd], rotated.
        keys, values: float32[B, W, KV, hd], a layer of the ring; H is a multiple of KV. Or
            [S, KV, hd]: all rings behind one another, which slots then count over.
        slots: int32[B, k + 1], within the ring: the current one and the chosen past ones.
        bias: float32[B, k + 1], added to the logits; -inf: nothing was written there, weight 0.
        dependent: see `wmrt.kernels.triton.dependent`.

    Raises:
        UsageError: tensors that do not fit together, or are not contiguous.
    """
    sizes = checks.attention(q, keys, values, slots, bias)
    checks.attended_float(sizes, q, attended)
    _launch((q, keys, values, slots, bias, attended, attended), sizes, False, dependent)


def transition_attention_int8(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    bias: Tensor,
    codes: Tensor,
    factors: Tensor,
    *,
    dependent: bool = False,
) -> None:
    """`transition_attention` as int8 groups of 32, what `wmrt.quant.quantize_groups` gives.

    `codes` int8[B, W'] and `factors` float32[B, W'/32], W' being H * hd rounded up to 256, are left
    as they are behind H * hd. `UnsupportedError` for heads that are no whole groups.
    """
    sizes = checks.attention(q, keys, values, slots, bias)
    checks.attended_int8(sizes, q, codes, factors)
    _launch((q, keys, values, slots, bias, codes, factors), sizes, True, dependent)


def _launch(tensors: tuple[Tensor, ...], sizes: Attention, quantize: bool, dependent: bool) -> None:
    made = constants(sizes, quantize=quantize)
    transition_attention_kernel[GRID(batch=sizes.batch, **made)](
        *tensors,
        **made,
        num_warps=warps(made["SLOTS"] * made["BLOCK"]),
        **options(dependent),
    )


def constants(sizes: Attention, *, quantize: bool) -> dict[str, Any]:
    """Constants of the kernel for these sizes."""
    slots, block = triton.next_power_of_2(sizes.slots), triton.next_power_of_2(sizes.dim)
    width = sizes.heads * sizes.dim
    return {
        "HEADS": sizes.heads,
        "KV": sizes.kv_heads,
        "DIM": sizes.dim,
        "WINDOW": sizes.window,
        "COUNT": sizes.slots,
        "SLOTS": slots,
        "BLOCK": block,
        "ROWS": min(slots, max(1, warps(slots * block) * 128 // block)),
        "SCALE": 1.0 / math.sqrt(sizes.dim),
        "WIDTH": -(-width // checks.WHOLE) * checks.WHOLE if quantize else width,
        "QUANTIZE": quantize,
        "GROUP": GROUP,
    }


def warps(values: int) -> int:
    """16 keys and 16 values a lane, all of them in flight at once; of 32, some were spilled."""
    return min(16, max(1, values // 512))


def aot_cases() -> list[AotCase]:
    """The default 9 slots of 64 and the whole ring, in the presets `1.3b` and `small`."""
    found = []
    for preset, heads, kv_heads, dim in (("1.3b", 16, 4, 128), ("small", 4, 2, 64)):
        for count in (9, 64):
            for quantize in (False, True):
                made = constants(Attention(1, heads, kv_heads, dim, 64, count), quantize=quantize)
                pointers = dict.fromkeys(("q", "keys", "values", "bias", "factors"), "*fp32")
                out = {"slots": "*i32", "out": "*i8" if quantize else "*fp32"}
                op = "transition_attention_int8" if quantize else "transition_attention"
                found.append(
                    AotCase(
                        name=f"{op}.{preset}.{count}",
                        kernel=transition_attention_kernel,
                        signature={**pointers, **out},
                        constants={**made, "DEPENDENT": False},
                        warps=warps(made["SLOTS"] * made["BLOCK"]),
                        grid=GRID,
                        arrays=ARRAYS if quantize else not_followed(ARRAYS, "factors"),
                    )
                )
    return [*found, dependent_case(named(found, "transition_attention_int8.1.3b.9"))]
