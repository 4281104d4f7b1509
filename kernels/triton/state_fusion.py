"""StateFusion in two launches: codes, values and previous action -> action embedding and token.

The first spreads the hidden units over programs, each of which embeds the fields anew; one more
program for each robot hashes its codes and embeds its action. The second spreads the token over
programs, each of which redoes the small product to `embedding64` and its norm: 64 KiB of the second
level cache each at preset 1.3b, for one launch less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import triton
import triton.language as tl
from torch import Tensor

from wmrt.kernels.reference_state import NORM_EPS
from wmrt.kernels.state_arguments import FusionSizes, check_fusion, power
from wmrt.kernels.triton.aot_cases import AotCase, named
from wmrt.kernels.triton.arrays import arrays
from wmrt.kernels.triton.dependent import dependent_case, follow, options
from wmrt.kernels.triton.formulas import Grid
from wmrt.kernels.triton.library import FP_FUSION
from wmrt.kernels.triton.row_dots import row_dots, split
from wmrt.kernels.triton.state_embed import embedded, embedded_action, memory_rows

#: Hidden units of a program, columns of the token of a program, and their warps.
UNITS, SLICE = 16, 64
HIDDEN_WARPS, TOKEN_WARPS = 4, 8
HIDDEN_GRID = Grid("batch", "ceil_div(HIDDEN, UNITS) + 1")
TOKEN_GRID = Grid("batch", "ceil_div(WIDTH, SLICE)")
HIDDEN_ARRAYS = arrays(
    "codes input batch, COLUMNS; values input batch, COLUMNS; previous input batch, ACTIONS;"
    "fields weights:fields any, FIELD; knots weights:knots COLUMNS, WIDEST;"
    "columns weights:columns COLUMNS, 4; multipliers weights:multipliers COLUMNS, GROUPS;"
    "first weights:first HIDDEN, COLUMNS * FIELD; first_bias weights:first_bias HIDDEN;"
    "action_table weights:action_table ACTIONS, KNOTS, ceil_div(EMBED, ACTIONS);"
    "action output batch, EMBED; work output batch, HIDDEN + GROUPS"
)
TOKEN_ARRAYS = arrays(
    "work input batch, HIDDEN + GROUPS; action input batch, ACTION;"
    "second weights:second EMBED, HIDDEN; embed_rows weights:embed_rows 4, EMBED;"
    "gate_bias weights:gate_bias 1; out weights:out WIDTH, EMBED; out_bias weights:out_bias WIDTH;"
    "memory weights:memory any, WIDTH; action_in weights:action_in WIDTH, ACTION;"
    "token output batch, WIDTH"
)


@triton.jit
def state_fusion_hidden(
    codes: tl.tensor, values: tl.tensor, previous: tl.tensor, fields: tl.tensor,
    knots: tl.tensor, columns: tl.tensor, multipliers: tl.tensor, first: tl.tensor,
    first_bias: tl.tensor, action_table: tl.tensor, action: tl.tensor, work: tl.tensor,
    COLUMNS: tl.constexpr, FIELD: tl.constexpr, WIDEST: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, GROUPS: tl.constexpr, ACTIONS: tl.constexpr, KNOTS: tl.constexpr,
    EMBED: tl.constexpr, UNITS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One robot and `UNITS` hidden units after GELU, or, the last program, rows of the memory and
    the embedded action. Hidden units and, as integers, rows go to `work` [B, HIDDEN + GROUPS].

    Args:
        CHUNK: inputs of a pass; BLOCK: codes of a pass of the hash.
    """
    robot, part = tl.program_id(0), tl.program_id(1)
    codes += robot * COLUMNS
    work += robot * (HIDDEN + GROUPS)
    if part * UNITS < HIDDEN:
        unit = part * UNITS + tl.arange(0, UNITS)
        held = tl.minimum(unit, HIDDEN - 1)
        total = tl.zeros((UNITS, CHUNK), tl.float32)
        for start in tl.static_range(0, COLUMNS * FIELD, CHUNK):
            at = start + tl.arange(0, CHUNK)
            place = first + (held * (COLUMNS * FIELD))[:, None] + at[None, :]
            inside = at[None, :] < COLUMNS * FIELD
            weight = tl.load(place, mask=inside, other=0.0, eviction_policy="evict_first")
            x = embedded(
                codes, values + robot * COLUMNS, fields, knots, columns, at, COLUMNS, FIELD, WIDEST
            )
            total += weight.to(tl.float32) * x[None, :]
        x = tl.sum(total, 1) + tl.load(first_bias + held)
        # 1 / sqrt(2)
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
        tl.store(work + unit, x, mask=unit < HIDDEN)
    else:
        group = tl.arange(0, triton.next_power_of_2(GROUPS))
        row = memory_rows(codes, columns, multipliers, group, COLUMNS, ROWS, GROUPS, BLOCK)
        tl.store(work + HIDDEN + group, row.to(tl.float32, bitcast=True), mask=group < GROUPS)
        e = tl.arange(0, triton.next_power_of_2(EMBED))
        acted = embedded_action(previous + robot * ACTIONS, action_table, e, ACTIONS, KNOTS, EMBED)
        tl.store(action + robot * EMBED + e, acted, mask=e < EMBED)


@triton.jit
def state_fusion_token(
    work: tl.tensor, action: tl.tensor, second: tl.tensor, embed_rows: tl.tensor,
    gate_bias: tl.tensor, out: tl.tensor, out_bias: tl.tensor, memory: tl.tensor,
    action_in: tl.tensor, token: tl.tensor, eps: tl.tensor, HIDDEN: tl.constexpr,
    EMBED: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, ACTION: tl.constexpr,
    SLICE: tl.constexpr, CHUNK: tl.constexpr, TURNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:  # fmt: skip
    """One robot and `SLICE` columns of its token [B, WIDTH], from what the first launch left.

    token = out embedding + sigmoid(gate embedding) * sum of memory rows + action_in action.
    """
    robot = tl.program_id(0)
    work += robot * (HIDDEN + GROUPS)
    column = tl.program_id(1) * SLICE + tl.arange(0, SLICE)
    held = column if WIDTH % SLICE == 0 else tl.minimum(column, WIDTH - 1)
    e = tl.arange(0, triton.next_power_of_2(EMBED))
    a = tl.arange(0, triton.next_power_of_2(ACTION))
    # Everything is asked for before anything is used: the first product pins it here.
    place = out + (held * EMBED)[:, None] + e[None, :]
    to_token = tl.load(place, mask=e[None, :] < EMBED, other=0.0, eviction_policy="evict_first")
    place = action_in + (held * ACTION)[:, None] + a[None, :]
    to_action = tl.load(place, mask=a[None, :] < ACTION, other=0.0, eviction_policy="evict_first")
    follow(DEPENDENT)
    acted = tl.load(action + robot * ACTION + a, mask=a < ACTION, other=0.0)
    recalled = tl.zeros((SLICE,), tl.float32)
    for group in tl.static_range(GROUPS):  # as one tensor it took 5 barriers more to add up
        row = tl.load(work + HIDDEN + group).to(tl.int32, bitcast=True).to(tl.int64)
        recalled += tl.load(memory + row * WIDTH + held).to(tl.float32)
    unit = tl.minimum(e, EMBED - 1)
    sums = row_dots(second, unit, work, HIDDEN, CHUNK, TURNS, 1, 0, "", True)
    x = tl.where(e < EMBED, sums[0] + tl.load(embed_rows + unit), 0.0)
    x = tl.where(e < EMBED, x - tl.div_rn(tl.sum(x, 0), EMBED * 1.0), 0.0)
    x *= tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(tl.sum(x * x, 0), EMBED * 1.0) + eps))
    x = x * tl.load(embed_rows + EMBED + unit) + tl.load(embed_rows + 2 * EMBED + unit)
    x = tl.where(e < EMBED, x, 0.0)
    gate = tl.sum(x * tl.load(embed_rows + 3 * EMBED + unit), 0) + tl.load(gate_bias)
    fused = tl.sum(to_token.to(tl.float32) * x[None, :], 1) + tl.load(out_bias + held)
    fused += tl.sigmoid(gate) * recalled
    fused += tl.sum(to_action.to(tl.float32) * acted[None, :], 1)
    tl.store(token + robot * WIDTH + column, fused, mask=column < WIDTH)


def state_fusion(
    codes: Tensor,
    values: Tensor,
    previous: Tensor,
    weights: Sequence[Tensor],
    sizes: Sequence[int],
    action: Tensor,
    work: Tensor,
    token: Tensor,
    *,
    dependent: bool = False,
) -> None:
    """Codes int32[B, F], values [B, F] and previous action [B, A] -> `action` [B, E], `token`
    [B, d], for 1 to 16 robots; `wmrt.model.fusion` in float32.

    Args:
        weights, sizes: see `FusionWeights` and `FusionSizes` of `wmrt.kernels.state_arguments`.
        work: scratch, float32 of `fusion_work` numbers or more.

        dependent: see `wmrt.kernels.triton.dependent`; of the second launch, a step begins with the
            first.

    Raises:
        UsageError, UnsupportedError: as `check_fusion`.
    """
    w, s = check_fusion(codes, values, previous, weights, sizes, action, work, token)
    hidden, tokens = _hidden_constants(s), _token_constants(s)
    state_fusion_hidden[HIDDEN_GRID(batch=len(codes), **hidden)](
        codes, values, previous, w.fields, w.knots, w.columns, w.multipliers, w.first,
        w.first_bias, w.action_table, action, work,
        **hidden, num_warps=HIDDEN_WARPS, enable_fp_fusion=FP_FUSION,
    )  # fmt: skip
    state_fusion_token[TOKEN_GRID(batch=len(codes), **tokens)](
        work, action, w.second, w.embed_rows, w.gate_bias, w.out, w.out_bias, w.memory,
        w.action_in, token, NORM_EPS,
        **tokens, num_warps=TOKEN_WARPS, **options(dependent),
    )  # fmt: skip


def _hidden_constants(s: FusionSizes) -> dict[str, int]:
    return {
        "COLUMNS": s.columns,
        "FIELD": s.field_dim,
        "WIDEST": s.widest,
        "HIDDEN": s.mlp_hidden,
        "ROWS": s.table_rows,
        "GROUPS": s.table_groups,
        "ACTIONS": s.actions,
        "KNOTS": s.action_knots,
        "EMBED": s.action_embed,
        "UNITS": UNITS,
        "CHUNK": min(256, power(s.columns * s.field_dim)),
        "BLOCK": min(64, power(s.columns)),
    }


def _token_constants(s: FusionSizes) -> dict[str, int]:
    chunk, turns = split(s.mlp_hidden, s.embed, 1, TOKEN_WARPS)
    return {
        "HIDDEN": s.mlp_hidden,
        "EMBED": s.embed,
        "WIDTH": s.d_model,
        "GROUPS": s.table_groups,
        "ACTION": s.action_embed,
        "SLICE": SLICE,
        "CHUNK": chunk,
        "TURNS": turns,
    }


def aot_cases() -> list[AotCase]:
    """Both kernels with the presets `small` and `1.3b`, the packaged highway schema and bfloat16
    matrices, as stored models have them."""
    found = []
    for name, s in SIZES.items():
        found += [
            AotCase(
                name=f"state_fusion_hidden.{name}",
                kernel=state_fusion_hidden,
                signature=_pointers(HIDDEN_ARRAYS),
                constants=_hidden_constants(s),
                warps=HIDDEN_WARPS,
                grid=HIDDEN_GRID,
                arrays=HIDDEN_ARRAYS,
                weights_per_program=UNITS * s.columns * s.field_dim,
                weight_bits=16,
            ),
            AotCase(
                name=f"state_fusion_token.{name}",
                kernel=state_fusion_token,
                signature={**_pointers(TOKEN_ARRAYS), "eps": "fp32"},
                constants={**_token_constants(s), "DEPENDENT": False},
                warps=TOKEN_WARPS,
                grid=TOKEN_GRID,
                arrays=TOKEN_ARRAYS,
                weights_per_program=SLICE * (s.embed + s.action_embed),
                weight_bits=16,
            ),
        ]
    return [
        *found,
        dependent_case(named(found, "state_fusion_token.1.3b"), early=("out", "action_in")),
    ]


#: `FusionSizes` of the packaged highway schema: 15 numbers of 64 buckets, one category; 2 actions.
SIZES = {
    "small": FusionSizes(16, 16, 65, 256, 64, 256, 2048, 8, 2, 33, 32),
    "1.3b": FusionSizes(16, 16, 65, 512, 64, 2048, 8192, 16, 2, 65, 64),
}
_TYPES = {
    **dict.fromkeys(("codes", "columns", "multipliers"), "*i32"),
    **dict.fromkeys(("fields", "first", "second", "out", "memory", "action_in"), "*bf16"),
    "action_table": "*bf16",
}


def _pointers(names: Iterable[str]) -> dict[str, str]:
    return {name: _TYPES.get(name, "*fp32") for name in names}
