"""What `state_fusion` and `transition_select` are given: names, shapes and types, checked.

Weights come as a list, since operators of torch take no records; matrices and tables are bfloat16
or float32 each, everything else as the fields say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.state_expect import Expect, count, sized

#: Robots of one step.
MOST_ROBOTS = 16
#: How past slots are chosen here; drawing them at random is for experiments and has no operator.
KINDS = ("learned", "recent", "full")
#: Widest embedding, and numbers of keys of one robot, that lie in the registers of one program.
MOST_EMBED, MOST_WINDOW, MOST_KEYS = 1024, 256, 16384
MATRIX = (torch.bfloat16, torch.float32)
_FLOAT, _INT32 = (torch.float32,), (torch.int32,)


class FusionSizes(NamedTuple):
    """Sizes of `wmrt.model.fusion.StateFusion` and of the previous action's embedding.

    `columns` F of the schema, `widest` the most knots of one, `action_knots` of each of `actions`
    dimensions, `action_embed` E the width of all of them.
    """

    columns: int
    field_dim: int
    widest: int
    mlp_hidden: int
    embed: int
    d_model: int
    table_rows: int
    table_groups: int
    actions: int
    action_knots: int
    action_embed: int


class FusionWeights(NamedTuple):
    """Attributes, e = embed and G = table_groups:

    fields: [rows, field_dim], the embeddings of all columns below one another.
    knots: float32[F, widest].
    columns: int32[F, 4]: first row of the column, 1 for a number, cells, largest code.
    multipliers: int32[F, G], the low 32 bits of those of the hash.
    first, first_bias: [mlp_hidden, F field_dim] and float32[mlp_hidden].
    second: [e, mlp_hidden].
    embed_rows: float32[4, e]: bias of `second`, weight and bias of the norm, weight of the gate.
    gate_bias: float32[1].
    out, out_bias: [d_model, e] and float32[d_model].
    memory: [table_rows, d_model].
    action_in: [d_model, E].
    action_table: [A, action_knots, E / A].
    """

    fields: Tensor
    knots: Tensor
    columns: Tensor
    multipliers: Tensor
    first: Tensor
    first_bias: Tensor
    second: Tensor
    embed_rows: Tensor
    gate_bias: Tensor
    out: Tensor
    out_bias: Tensor
    memory: Tensor
    action_in: Tensor
    action_table: Tensor


class SelectorSizes(NamedTuple):
    """Sizes of `wmrt.model.transition.TransitionSelector`; `half` of the rotary phases, hd / 2."""

    d_model: int
    action_embed: int
    lstm: int
    select_dim: int
    window: int
    half: int


class SelectorWeights(NamedTuple):
    """Attributes, with h the width of the LSTM and s that of slot keys:

    lstm_in, lstm_hidden: [4h, E] and [4h, h]; gates input, forget, cell, output below one another.
    lstm_bias: float32[2, 4h], of both.
    query, query_bias: [s, h] and float32[s].
    key, key_bias: [s, d_model] and float32[s].
    age_bias: float32[W].
    increments: int32[hd / 2], in 2^-32 turns a step.
    """

    lstm_in: Tensor
    lstm_hidden: Tensor
    lstm_bias: Tensor
    query: Tensor
    query_bias: Tensor
    key: Tensor
    key_bias: Tensor
    age_bias: Tensor
    increments: Tensor


def fusion_work(sizes: Sequence[int], batch: int) -> int:
    """Floats that `state_fusion` needs of `work`: hidden units and rows of the memory."""
    named = FusionSizes(*sizes)
    return batch * (named.mlp_hidden + named.table_groups)


def select_work(lstm: int, batch: int) -> int:
    """Floats that `transition_select` needs of `work`: the next output of the LSTM."""
    return batch * lstm


def check_fusion(
    codes: Tensor,
    values: Tensor,
    previous: Tensor,
    weights: Sequence[Tensor],
    sizes: Sequence[int],
    action: Tensor,
    work: Tensor,
    token: Tensor,
) -> tuple[FusionWeights, FusionSizes]:
    """The list by names, if everything fits together.

    Raises:
        UsageError: a shape, type, device or number that does not.
        UnsupportedError: sizes that the kernels are not made for.
    """
    count(FusionSizes, sizes)
    count(FusionWeights, weights)
    s, w = FusionSizes(*sizes), FusionWeights(*weights)
    if min(s) < 1 or s.action_embed % s.actions or s.action_knots < 2:
        raise UsageError(
            f"{s}: sizes are at least 1, action_knots at least 2, and action_embed is a multiple "
            "of actions"
        )
    if s.embed > MOST_EMBED:
        raise UnsupportedError(f"embed {s.embed}: state_fusion is made for up to {MOST_EMBED}")
    batch = _robots(codes)
    expect = Expect("state_fusion", codes.device)
    expect("codes", codes, _INT32, (batch, s.columns))
    expect("values", values, _FLOAT, (batch, s.columns))
    expect("previous", previous, _FLOAT, (batch, s.actions))
    expect("action", action, _FLOAT, (batch, s.action_embed))
    expect("token", token, _FLOAT, (batch, s.d_model))
    expect.scratch(work, fusion_work(s, batch))
    _check_fusion_weights(expect, w, s)
    return w, s


def _check_fusion_weights(expect: Expect, w: FusionWeights, s: FusionSizes) -> None:
    each = s.action_embed // s.actions
    rows = max(w.fields.shape[0] if w.fields.dim() else 0, s.columns)  # of each column one, or more
    expect("fields", w.fields, MATRIX, (rows, s.field_dim))
    expect("knots", w.knots, _FLOAT, (s.columns, s.widest))
    expect("columns", w.columns, _INT32, (s.columns, 4))
    expect("multipliers", w.multipliers, _INT32, (s.columns, s.table_groups))
    expect("first", w.first, MATRIX, (s.mlp_hidden, s.columns * s.field_dim))
    expect("first_bias", w.first_bias, _FLOAT, (s.mlp_hidden,))
    expect("second", w.second, MATRIX, (s.embed, s.mlp_hidden))
    expect("embed_rows", w.embed_rows, _FLOAT, (4, s.embed))
    expect("gate_bias", w.gate_bias, _FLOAT, (1,))
    expect("out", w.out, MATRIX, (s.d_model, s.embed))
    expect("out_bias", w.out_bias, _FLOAT, (s.d_model,))
    expect("memory", w.memory, MATRIX, (s.table_rows, s.d_model))
    expect("action_in", w.action_in, MATRIX, (s.d_model, s.action_embed))
    expect("action_table", w.action_table, MATRIX, (s.actions, s.action_knots, each))


def check_select(
    token: Tensor,
    action: Tensor,
    step: Tensor,
    weights: Sequence[Tensor],
    kind: str,
    hidden: Tensor,
    cell: Tensor,
    select_keys: Tensor,
    work: Tensor,
    slots: Tensor,
    bias: Tensor,
    cos: Tensor,
    sin: Tensor,
    robots: Tensor | None = None,
) -> tuple[SelectorWeights, SelectorSizes]:
    """The list by names and its sizes, if everything fits together. With `robots` the state may be
    of more robots than step. Errors as `check_fusion`."""
    count(SelectorWeights, weights)
    w = SelectorWeights(*weights)
    sized(slots=slots, **w._asdict())
    s = SelectorSizes(
        *(w.key.shape[-1], w.lstm_in.shape[-1], w.lstm_hidden.shape[-1], w.key.shape[0]),
        *(w.age_bias.shape[0], w.increments.shape[0]),
    )
    batch = _robots(token)
    _check_choice(kind, slots, s.window, s.select_dim)
    expect = Expect("transition_select", token.device)
    expect("token", token, _FLOAT, (batch, s.d_model))
    expect("action", action, _FLOAT, (batch, s.action_embed))
    rings = batch if robots is None else _rings(expect, robots, step, batch)
    expect("step", step, (torch.int64,), (rings,))
    expect("hidden", hidden, _FLOAT, (rings, s.lstm))
    expect("cell", cell, _FLOAT, (rings, s.lstm))
    expect("select_keys", select_keys, _FLOAT, (rings, s.window, s.select_dim))
    expect.scratch(work, select_work(s.lstm, batch))
    expect("slots", slots, _INT32, (batch, slots.shape[-1]))
    expect("bias", bias, _FLOAT, (batch, slots.shape[-1]))
    expect("cos", cos, _FLOAT, (batch, s.half))
    expect("sin", sin, _FLOAT, (batch, s.half))
    _check_selector_weights(expect, w, s)
    return w, s


def _rings(expect: Expect, robots: Tensor, step: Tensor, batch: int) -> int:
    """Robots of a group of which those in `robots` step."""
    expect("robots", robots, _INT32, (batch,))
    return max(batch, step.shape[0] if step.dim() else 0)


def _check_choice(kind: str, slots: Tensor, window: int, size: int) -> None:
    if kind == "random":
        raise UnsupportedError(
            "the selector 'random' draws slots anew in every step and has no operator; use "
            "executor=eager"
        )
    if kind not in KINDS:
        raise UsageError(f"selector {kind!r}: transition_select knows {', '.join(KINDS)}")
    count = slots.shape[-1]
    if not 1 <= count <= window or (kind == "full" and count != window):
        wanted = f"[B, {window}]" if kind == "full" else f"[B, 1 to {window}]"
        raise UsageError(f"slots is {list(slots.shape)}; {kind!r} gives {wanted}")
    if window > MOST_WINDOW or power(window) * power(size) > MOST_KEYS:
        raise UnsupportedError(
            f"a window of {window} states with keys of {size}: transition_select is made for "
            f"windows up to {MOST_WINDOW} and {MOST_KEYS} numbers of keys"
        )


def _check_selector_weights(expect: Expect, w: SelectorWeights, s: SelectorSizes) -> None:
    expect("lstm_in", w.lstm_in, MATRIX, (4 * s.lstm, s.action_embed))
    expect("lstm_hidden", w.lstm_hidden, MATRIX, (4 * s.lstm, s.lstm))
    expect("lstm_bias", w.lstm_bias, _FLOAT, (2, 4 * s.lstm))
    expect("query", w.query, MATRIX, (s.select_dim, s.lstm))
    expect("query_bias", w.query_bias, _FLOAT, (s.select_dim,))
    expect("key", w.key, MATRIX, (s.select_dim, s.d_model))
    expect("key_bias", w.key_bias, _FLOAT, (s.select_dim,))
    expect("age_bias", w.age_bias, _FLOAT, (s.window,))
    expect("increments", w.increments, _INT32, (s.half,))


def _robots(first: Tensor) -> int:
    if first.dim() != 2 or not 1 <= len(first) <= MOST_ROBOTS:
        raise UsageError(f"{list(first.shape)}: a step has 1 to {MOST_ROBOTS} robots, [B, ..]")
    return len(first)


def power(size: int) -> int:
    """The power of two from ``size`` on."""
    return 1 << (size - 1).bit_length()
