"""Device functions: scores of slots, an order of floats in integers, every slot's place in it."""

from __future__ import annotations

import triton
import triton.language as tl

from wmrt.kernels.triton.row_dots import row_dots


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


@triton.jit
def scores(
    hidden: tl.tensor, select_keys: tl.tensor, query: tl.tensor, query_bias: tl.tensor,
    slot: tl.tensor, past: tl.tensor, LSTM: tl.constexpr, SIZE: tl.constexpr,
    CHUNK: tl.constexpr, TURNS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Products of the query of `hidden` [LSTM] with the keys of past slots [WINDOW, SIZE]."""
    s = tl.arange(0, triton.next_power_of_2(SIZE))
    held = tl.minimum(s, SIZE - 1)
    # Before the query, whose loads are pinned: the keys are on their way meanwhile.
    place = select_keys + (slot * SIZE)[:, None] + s[None, :]
    keys = tl.load(place, mask=past[:, None] & (s[None, :] < SIZE), other=0.0)
    sums = row_dots(query, held, hidden, LSTM, CHUNK, TURNS, 1, 0, "evict_first", True)
    asked = tl.where(s < SIZE, sums[0] + tl.load(query_bias + held), 0.0)
    return tl.sum(keys * asked[None, :], 1)
