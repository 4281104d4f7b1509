"""Device functions: what a step looks up in tables for its state and its previous action.

As `wmrt.model.fusion`, but that codes which are not the schema's become the nearest, and an action
of NaN is embedded as NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def known(codes: tl.tensor, columns: tl.tensor, column: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Codes of columns, the nearest where one is not the schema's: no index leaves a table."""
    most = tl.load(columns + column * 4 + 3, mask=inside, other=0)
    code = tl.load(codes + column, mask=inside, other=0)
    return tl.minimum(tl.maximum(code, 0), most), most


@triton.jit
def embedded(
    codes: tl.tensor,
    values: tl.tensor,
    fields: tl.tensor,
    knots: tl.tensor,
    columns: tl.tensor,
    at: tl.tensor,
    COLUMNS: tl.constexpr,
    FIELD: tl.constexpr,
    WIDEST: tl.constexpr,
) -> tl.tensor:
    """Places `at` of the embedded fields, 0 behind them: a row of the table, or two neighbouring
    ones interpolated where the column is a number that is known."""
    column, inside = at // FIELD, at < COLUMNS * FIELD
    code, _ = known(codes, columns, column, inside)
    number = tl.load(columns + column * 4 + 1, mask=inside, other=0)
    between = (number != 0) & (code > 0)
    place = knots + column * WIDEST + code
    low = tl.load(place - 1, mask=between, other=0.0)
    high = tl.load(place, mask=between, other=1.0)
    value = tl.load(values + column, mask=inside, other=0.0)
    share = tl.div_rn(value - low, tl.maximum(high - low, 1e-12))
    # NaN is neither below 0 nor above 1 and stays.
    share = tl.where(share < 0.0, 0.0, tl.where(share > 1.0, 1.0, share))
    share = tl.where(between, share, 0.0)
    row = tl.load(columns + column * 4, mask=inside, other=0) + code
    from_row = fields + row * FIELD + at % FIELD
    lower = tl.load(from_row, mask=inside, other=0.0).to(tl.float32)
    step = tl.where(between, FIELD, 0)
    upper = tl.load(from_row + step, mask=inside, other=0.0).to(tl.float32)
    return lerp(lower, upper, share)


@triton.jit
def lerp(low: tl.tensor, high: tl.tensor, share: tl.tensor) -> tl.tensor:
    """As `torch.lerp`: from the nearer end."""
    span = high - low
    return tl.where(share < 0.5, low + share * span, high - span * (1.0 - share))


@triton.jit
def memory_rows(
    codes: tl.tensor,
    columns: tl.tensor,
    multipliers: tl.tensor,
    group: tl.tensor,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Rows int32 of the memory that the codes are hashed to: 32-bit integers, which wrap."""
    mixed = tl.zeros((group.shape[0],), tl.int64)
    for start in tl.static_range(0, COLUMNS, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < COLUMNS
        code, most = known(codes, columns, column, inside)
        cells = tl.load(columns + column * 4 + 2, mask=inside, other=0)
        coarse = 1 + (code - 1) * cells // tl.maximum(most, 1)
        coarse = tl.where((code > 0) & (cells > 0), coarse, code)
        both = inside[:, None] & (group[None, :] < GROUPS)
        place = multipliers + column[:, None] * GROUPS + group[None, :]
        factor = tl.load(place, mask=both, other=0).to(tl.uint32)
        # Wrapped products, added in 64 bits: a sum of uint32 would be kept in more by numpy.
        mixed += tl.sum(((coarse + 1).to(tl.uint32)[:, None] * factor).to(tl.int64), 0)
    mixed = (mixed & 0xFFFFFFFF).to(tl.uint32)
    mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D
    mixed = (mixed ^ (mixed >> 12)) * 0x297A2D39
    return ((mixed ^ (mixed >> 15)) % ROWS).to(tl.int32)


@triton.jit
def embedded_action(
    previous: tl.tensor,
    table: tl.tensor,
    at: tl.tensor,
    ACTIONS: tl.constexpr,
    KNOTS: tl.constexpr,
    EMBED: tl.constexpr,
) -> tl.tensor:
    """Places `at` of the embedded action: neighbouring knots on [-1, 1], interpolated."""
    EACH: tl.constexpr = EMBED // ACTIONS
    dim, inside = at // EACH, at < EMBED
    given = tl.load(previous + dim, mask=inside, other=0.0)
    position = (given + 1.0) * 0.5 * (KNOTS - 1)
    position = tl.where(position < 0.0, 0.0, position)
    position = tl.where(position > KNOTS - 1, KNOTS - 1.0, position)
    lower = tl.where(position == position, position, 0.0).to(tl.int32)
    lower = tl.minimum(lower, KNOTS - 2)
    place = table + (dim * KNOTS + lower) * EACH + at % EACH
    low = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(place + EACH, mask=inside, other=0.0).to(tl.float32)
    return lerp(low, high, position - lower.to(tl.float32))
