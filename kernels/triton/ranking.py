"""Device functions: an order of floats in integers, and every slot's place in it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ascending(x: tl.tensor) -> tl.tensor:
    """int32 in the order of floats: both zeros alike, NaN above infinity."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(x == x, bits, 0x7FFFFFFF)


@triton.jit
def ranks(order: tl.tensor, slot: tl.tensor) -> tl.tensor:
    """How many slots come before each [N]: those of higher order, or of the same and lower slot."""
    mine, other = order[:, None], order[None, :]
    before = (other > mine) | ((other == mine) & (slot[None, :] < slot[:, None]))
    return tl.sum(before.to(tl.int32), 1)
