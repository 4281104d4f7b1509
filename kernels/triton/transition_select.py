"""Which past states a step reads, in two launches: LSTM and slot keys, then the choice.

The first spreads the rows of the slot key and the units of the LSTM over programs; the LSTM's next
output goes to scratch, since other programs still read the one before. In the second one program
for each robot makes the query, scores the slots, ranks them, and turns the rotary phases.

Some robots of a group may step while the others stay: row b is then robot ``robots[b]`` of the
state, and slots count over the rings of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from wmrt.kernels.state_arguments import SelectorSizes, check_select, power
from wmrt.kernels.triton.aot_cases import AotCase, named
from wmrt.kernels.triton.arrays import not_followed
from wmrt.kernels.triton.dependent import dependent_case, follow, options
from wmrt.kernels.triton.formulas import Grid
from wmrt.kernels.triton.ranking import ascending, ranks, scores
from wmrt.kernels.triton.row_dots import row_dots, split
from wmrt.kernels.triton.select_arrays import LEARNED, PARTS_ARRAYS, SLOTS_ARRAYS, of_some
from wmrt.kernels.triton.turns import cos_sin

#: Units of the LSTM, rows of the key of one program, and its warps.
UNITS, KEYS, PARTS_WARPS = 8, 4, 4
PARTS_GRID, SLOTS_GRID = (
    Grid("batch", "ceil_div(SIZE, KEYS) + ceil_div(LSTM, UNITS)"),
    Grid("batch"),
)


@triton.jit
def transition_select_parts(
    token: tl.tensor, action: tl.tensor, step: tl.tensor, hidden: tl.tensor, cell: tl.tensor,
    select_keys: tl.tensor, work: tl.tensor, lstm_in: tl.tensor, lstm_hidden: tl.tensor,
    lstm_bias: tl.tensor, key: tl.tensor, key_bias: tl.tensor, robots: tl.tensor,
    WIDTH: tl.constexpr, ACTION: tl.constexpr, LSTM: tl.constexpr, SIZE: tl.constexpr,
    WINDOW: tl.constexpr, UNITS: tl.constexpr, KEYS: tl.constexpr, KEY_CHUNK: tl.constexpr,
    KEY_TURNS: tl.constexpr, LSTM_CHUNK: tl.constexpr, LSTM_TURNS: tl.constexpr,
    SOME: tl.constexpr, DEPENDENT: tl.constexpr,
) -> None:  # fmt: skip
    """One robot and `KEYS` rows of its present slot's key, or `UNITS` units of the LSTM: `cell` in
    place, the next output to `work` [B, LSTM]. `SOME`: which robot is in `robots`."""
    follow(DEPENDENT)
    robot, part = tl.program_id(0), tl.program_id(1)
    own = tl.load(robots + robot) if SOME else robot
    KEY_PARTS: tl.constexpr = (SIZE + KEYS - 1) // KEYS
    if part < KEY_PARTS:
        row = part * KEYS + tl.arange(0, KEYS)
        slot = (tl.load(step + own) % WINDOW).to(tl.int32)
        real = tl.minimum(row, SIZE - 1)
        sums = row_dots(
            key, real, token + robot * WIDTH, WIDTH, KEY_CHUNK, KEY_TURNS, 1, 0, "evict_first", True
        )
        to = select_keys + (own * WINDOW + slot) * SIZE + row
        tl.store(to, sums[0] + tl.load(key_bias + real), mask=row < SIZE)
    else:
        unit = (part - KEY_PARTS) * UNITS + tl.arange(0, UNITS)
        held = tl.minimum(unit, LSTM - 1)
        before = tl.load(cell + own * LSTM + held)
        entering = row_dots(
            lstm_in, held, action + robot * ACTION,
            ACTION, LSTM_CHUNK, 1, 4, LSTM, "evict_first", False,
        )  # fmt: skip
        staying = row_dots(
            lstm_hidden, held, hidden + own * LSTM,
            LSTM, LSTM_CHUNK, LSTM_TURNS, 4, LSTM, "evict_first", True,
        )  # fmt: skip
        gates: tl.tensor = ()
        for i in tl.static_range(4):
            bias = tl.load(lstm_bias + held + i * LSTM)
            bias += tl.load(lstm_bias + held + (4 + i) * LSTM)
            gates = gates + (entering[i] + staying[i] + bias,)
        now = tl.sigmoid(gates[1]) * before + tl.sigmoid(gates[0]) * libdevice.tanh(gates[2])
        tl.store(cell + own * LSTM + unit, now, mask=unit < LSTM)
        shown = tl.sigmoid(gates[3]) * libdevice.tanh(now)
        tl.store(work + robot * LSTM + unit, shown, mask=unit < LSTM)


@triton.jit
def transition_select_slots(
    work: tl.tensor, step: tl.tensor, select_keys: tl.tensor, query: tl.tensor,
    query_bias: tl.tensor, age_bias: tl.tensor, increments: tl.tensor, hidden: tl.tensor,
    slots: tl.tensor, bias: tl.tensor, cos: tl.tensor, sin: tl.tensor, robots: tl.tensor,
    scale: tl.tensor, KIND: tl.constexpr, LSTM: tl.constexpr, SIZE: tl.constexpr,
    WINDOW: tl.constexpr, COUNT: tl.constexpr, HALF: tl.constexpr, CHUNK: tl.constexpr,
    TURNS: tl.constexpr, SOME: tl.constexpr, DEPENDENT: tl.constexpr,
) -> None:  # fmt: skip
    """One robot: `hidden` from scratch, slots and biases [B, COUNT + 1], cos and sin [B, HALF].

    Scores times `scale`; of equal ones the lowest slot comes first, NaN before any number.
    `SOME`: which robot is in `robots`, and slots count over the rings of all.
    """
    follow(DEPENDENT)
    robot, unit = tl.program_id(0), tl.arange(0, triton.next_power_of_2(LSTM))
    own = tl.load(robots + robot) if SOME else robot
    ring = own * WINDOW if SOME else 0
    work += robot * LSTM
    taken = tl.load(step + own)
    present = (taken % WINDOW).to(tl.int32)
    slot = tl.arange(0, triton.next_power_of_2(WINDOW))
    age = tl.where(slot <= present, present - slot, present - slot + WINDOW)
    past = (slot < WINDOW) & (age > 0) & (age <= taken)
    if KIND == "learned":
        score = scores(
            work, select_keys + own * (WINDOW * SIZE), query, query_bias, slot, past,
            LSTM, SIZE, CHUNK, TURNS,
        )  # fmt: skip
        score = score * scale + tl.load(age_bias + age, mask=past, other=0.0)
        gate = tl.minimum(score, 0.0) - libdevice.log1p(tl.exp(-tl.abs(score)))
        order = ascending(tl.where(past, score, float("-inf")))
    else:
        gate = tl.zeros((slot.shape[0],), tl.float32)
        order = tl.where(past, -age, -WINDOW)
    tl.store(hidden + own * LSTM + unit, tl.load(work + unit, mask=unit < LSTM), mask=unit < LSTM)
    tl.store(slots + robot * (COUNT + 1), ring + present)
    tl.store(bias + robot * (COUNT + 1), 0.0)
    if COUNT > 0:
        # The present slot comes behind all others, which are enough: COUNT < WINDOW.
        order = tl.where((slot < WINDOW) & (slot != present), order, -2147483648)
        rank = ranks(order, slot)
        to = robot * (COUNT + 1) + 1 + rank
        tl.store(slots + to, ring + slot, mask=rank < COUNT)
        tl.store(bias + to, tl.where(past, gate, float("-inf")), mask=rank < COUNT)
    half = tl.arange(0, triton.next_power_of_2(HALF))
    increment = tl.load(increments + half, mask=half < HALF, other=0)
    cosine, sine = cos_sin(increment.to(tl.uint32) * taken.to(tl.uint32))
    tl.store(cos + robot * HALF + half, cosine, mask=half < HALF)
    tl.store(sin + robot * HALF + half, sine, mask=half < HALF)


def transition_select(
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
    *,
    dependent: bool = False,
) -> None:
    """One step of `wmrt.model.transition` and `wmrt.model.rope` for 1 to 16 robots, but for `step`,
    which stays.

    Args:
        token, action, step: float32[B, d], float32[B, E] and int64[B], the steps taken.
        weights: see `SelectorWeights` of `wmrt.kernels.state_arguments`.
        kind: learned, recent or full.
        hidden, cell, select_keys: float32[B, h], [B, h] and [B, W, s], brought up to date.
        work: scratch, float32 of `select_work` numbers or more.
        slots, bias: int32 and float32[B, k + 1]: the present slot with 0, then past ones, best
            first; -inf where nothing is written yet.
        cos, sin: float32[B, hd / 2].
        robots: int32[B], each at most once: which of the robots in step, hidden, cell and
            select_keys, here of B or more, take a step; slots are then of all rings behind one
            another, robots[b] * W and up. None: all, and slots of each own ring.
        dependent: see `wmrt.kernels.triton.dependent`.

    Raises:
        UsageError, UnsupportedError: as `check_select`.
    """
    w, s = check_select(
        token, action, step, weights, kind,
        hidden, cell, select_keys, work, slots, bias, cos, sin, robots,
    )  # fmt: skip
    batch, how, made = len(token), options(dependent), _parts_constants(s)
    some = slots if robots is None else robots  # not read then
    transition_select_parts[PARTS_GRID(batch=batch, **made)](
        token, action, step, hidden, cell, select_keys, work,
        w.lstm_in, w.lstm_hidden, w.lstm_bias, w.key, w.key_bias, some,
        **made, SOME=robots is not None, num_warps=PARTS_WARPS, **how,
    )  # fmt: skip
    transition_select_slots[SLOTS_GRID(batch=batch)](
        work, step, select_keys, w.query, w.query_bias, w.age_bias, w.increments,
        hidden, slots, bias, cos, sin, some, 1.0 / math.sqrt(s.select_dim),
        **_slots_constants(s, kind, slots.shape[1] - 1), SOME=robots is not None,
        num_warps=_slots_warps(s), **how,
    )  # fmt: skip


def _parts_constants(s: SelectorSizes) -> dict[str, int]:
    key = split(s.d_model, KEYS, 1, PARTS_WARPS)
    lstm = split(s.lstm, UNITS, 4, PARTS_WARPS)
    plan = ("KEY_CHUNK", "KEY_TURNS", "LSTM_CHUNK", "LSTM_TURNS")
    return {
        "WIDTH": s.d_model,
        "ACTION": s.action_embed,
        "LSTM": s.lstm,
        "SIZE": s.select_dim,
        "WINDOW": s.window,
        "UNITS": UNITS,
        "KEYS": KEYS,
        **dict(zip(plan, (*key, *lstm), strict=True)),
    }


def _slots_constants(s: SelectorSizes, kind: str, count: int) -> dict[str, int | str]:
    chunk, turns = split(s.lstm, s.select_dim, 1, _slots_warps(s))
    return {
        "KIND": kind,
        "LSTM": s.lstm,
        "SIZE": s.select_dim,
        "WINDOW": s.window,
        "COUNT": count,
        "HALF": s.half,
        "CHUNK": chunk,
        "TURNS": turns,
    }


def _slots_warps(s: SelectorSizes) -> int:
    """16 numbers of slot keys a lane. Scores lie in every lane of a warp that summed them, so with
    half the warps each lane would make twice the biases: 1541 instructions at preset 1.3b, not
    918."""
    return min(16, max(4, power(s.window) * power(s.select_dim) // 512))


def aot_cases() -> list[AotCase]:
    """Both kernels with the presets `small` and `1.3b` and bfloat16 matrices, the choice of the
    most recent states, which needs no query, and some robots of a group."""
    found = []
    for name, s in SIZES.items():
        found.append(_parts_case(name, s))
        found += [_slots_case(name, s, kind) for kind in ("learned", "recent")]
    wide = SIZES["1.3b"]
    found += [_parts_case("1.3b", wide, some=True), _slots_case("1.3b", wide, "learned", some=True)]
    ops = ("transition_select_parts", "transition_select_slots")
    names = [f"{op}.1.3b{some}" for op in ops for some in ("", ".some")]
    return [*found, *(dependent_case(named(found, name)) for name in names)]


def _parts_case(name: str, s: SelectorSizes, *, some: bool = False) -> AotCase:
    return AotCase(
        name=f"transition_select_parts.{name}{'.some' * some}",
        kernel=transition_select_parts,
        signature=_pointers(PARTS_ARRAYS),
        constants={**_parts_constants(s), "SOME": some, "DEPENDENT": False},
        warps=PARTS_WARPS,
        grid=PARTS_GRID,
        arrays=of_some(PARTS_ARRAYS) if some else not_followed(PARTS_ARRAYS, "robots"),
        weights_per_program=KEYS * s.d_model + 4 * UNITS * (s.action_embed + s.lstm),
        weight_bits=16,
    )


def _slots_case(name: str, s: SelectorSizes, kind: str, *, some: bool = False) -> AotCase:
    learned = kind == "learned"
    given = of_some(SLOTS_ARRAYS) if some else not_followed(SLOTS_ARRAYS, "robots")
    return AotCase(
        name=f"transition_select_slots.{name}{'' if learned else '.' + kind}{'.some' * some}",
        kernel=transition_select_slots,
        signature={**_pointers(SLOTS_ARRAYS), "scale": "fp32"},
        constants={**_slots_constants(s, kind, 8), "SOME": some, "DEPENDENT": False},
        warps=_slots_warps(s),
        grid=SLOTS_GRID,
        arrays=given if learned else not_followed(given, *LEARNED),
        weights_per_program=s.select_dim * s.lstm if learned else 0,
        weight_bits=16,
    )


SIZES = {
    "small": SelectorSizes(256, 32, 64, 32, 64, 32),
    "1.3b": SelectorSizes(2048, 64, 256, 128, 64, 64),
}
_TYPES = {
    "step": "*i64",
    **dict.fromkeys(("increments", "slots", "robots"), "*i32"),
    **dict.fromkeys(("lstm_in", "lstm_hidden", "key", "query"), "*bf16"),
}


def _pointers(names: Iterable[str]) -> dict[str, str]:
    return {name: _TYPES.get(name, "*fp32") for name in names}
