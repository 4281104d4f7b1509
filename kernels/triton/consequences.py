"""What is read off the dynamics head: the next values, categories, reward, and whether it goes on.

One launch; `wmrt.model.heads.DynamicsHead` defines it. A captured step ends here: the host gets a
few numbers, not logits.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from wmrt.kernels.decode_arguments import Decode, check_consequences
from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.arrays import arrays
from wmrt.kernels.triton.dependent import dependent_case, follow, options
from wmrt.kernels.triton.formulas import Grid

#: Numbers or categories of one program.
ROWS = 8
GRID = Grid("ceil_div(NUMBERS, ROWS) + ceil_div(CATEGORIES, ROWS) + 1", "batch")
ARRAYS = arrays(
    "outputs input batch, WIDTH; codes input batch, COLUMNS; values input batch, COLUMNS;"
    "numbers weights NUMBERS; scales weights 5, NUMBERS; centers weights BINS;"
    "ends weights CATEGORIES; reward_centers weights REWARDS; following output batch, NUMBERS;"
    "missing output batch, NUMBERS; category output batch, CATEGORIES; expected output batch;"
    "continues output batch"
)


@triton.jit
def consequences_kernel(
    outputs: tl.tensor,
    codes: tl.tensor,
    values: tl.tensor,
    numbers: tl.tensor,
    scales: tl.tensor,
    centers: tl.tensor,
    ends: tl.tensor,
    reward_centers: tl.tensor,
    following: tl.tensor,
    missing: tl.tensor,
    category: tl.tensor,
    expected: tl.tensor,
    continues: tl.tensor,
    reward_scale: tl.tensor,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    NUMBERS: tl.constexpr,
    BINS: tl.constexpr,
    CATEGORIES: tl.constexpr,
    LOGITS: tl.constexpr,
    REWARDS: tl.constexpr,
    ROWS: tl.constexpr,
    BIN_BLOCK: tl.constexpr,
    CLASS_BLOCK: tl.constexpr,
    REWARD_BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Programs (part, robot): parts of `ROWS` numbers, then of `ROWS` categories, then one for
    reward and continuation."""
    follow(DEPENDENT)
    part, robot = tl.program_id(0), tl.program_id(1)
    row = outputs + robot * WIDTH
    number_parts: tl.constexpr = (NUMBERS + ROWS - 1) // ROWS
    category_parts: tl.constexpr = (CATEGORIES + ROWS - 1) // ROWS
    if part < number_parts:
        mine = part * ROWS + tl.arange(0, ROWS)
        at = robot * COLUMNS + tl.load(numbers + mine, mask=mine < NUMBERS, other=0)
        known = tl.load(codes + at, mask=mine < NUMBERS, other=0) > 0
        now = tl.load(values + at, mask=mine < NUMBERS, other=0.0)
        to = robot * NUMBERS + mine
        change = next_numbers(row, mine, known, now, scales, centers, NUMBERS, BINS, BIN_BLOCK)
        tl.store(following + to, change, mask=mine < NUMBERS)
        gone = tl.load(row + NUMBERS * BINS + mine, mask=mine < NUMBERS, other=0.0)
        tl.store(missing + to, gone, mask=mine < NUMBERS)
    elif part < number_parts + category_parts:
        chosen = (part - number_parts) * ROWS + tl.arange(0, ROWS)
        classes = next_classes(row + NUMBERS * (BINS + 1), chosen, ends, CATEGORIES, CLASS_BLOCK)
        tl.store(category + robot * CATEGORIES + chosen, classes, mask=chosen < CATEGORIES)
    else:
        place = row + NUMBERS * (BINS + 1) + LOGITS
        mean = softmax_mean(place, reward_centers, REWARDS, REWARD_BLOCK)
        tl.store(expected + robot, mean * reward_scale)
        chance = tl.div_rn(1.0, 1.0 + tl.exp(-tl.load(place + REWARDS)))
        tl.store(continues + robot, chance)


@triton.jit
def next_numbers(
    row: tl.tensor,
    mine: tl.tensor,
    known: tl.tensor,
    now: tl.tensor,
    scales: tl.tensor,
    centers: tl.tensor,
    NUMBERS: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """float32[R]: the numbers `mine` after their change, within their range."""
    held = mine < NUMBERS
    limit = tl.load(scales + mine, mask=held, other=0.0)
    scale = tl.load(scales + NUMBERS + mine, mask=held, other=0.0)
    fill = tl.load(scales + 2 * NUMBERS + mine, mask=held, other=0.0)
    low = tl.load(scales + 3 * NUMBERS + mine, mask=held, other=0.0)
    high = tl.load(scales + 4 * NUMBERS + mine, mask=held, other=0.0)
    coded = expectation(row + mine * BINS, centers, held, BINS, BLOCK) * limit
    change = libdevice.expm1(tl.abs(coded)) * scale
    moved = tl.where(known, now, fill) + tl.where(coded < 0, -change, change)
    # Comparisons, since minimum and maximum of hardware drop NaN.
    return tl.where(moved < low, low, tl.where(moved > high, high, moved))


@triton.jit
def next_classes(
    logits: tl.tensor,
    chosen: tl.tensor,
    ends: tl.tensor,
    CATEGORIES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """int64[R]: the likeliest class of the categories `chosen`."""
    held = chosen < CATEGORIES
    end = tl.load(ends + chosen, mask=held, other=1)
    begin = tl.load(ends + chosen - 1, mask=held & (chosen > 0), other=0)
    at = tl.arange(0, BLOCK)[None, :]
    inside = held[:, None] & (at < (end - begin)[:, None])
    return first_of_largest(tl.load(logits + begin[:, None] + at, mask=inside, other=float("-inf")))


@triton.jit
def softmax_mean(
    logits: tl.tensor, centers: tl.tensor, COUNT: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """The mean of `centers` under the softmax of `logits`, both [COUNT]."""
    at = tl.arange(0, BLOCK)
    given = tl.load(logits + at, mask=at < COUNT, other=float("-inf"))
    weight = tl.exp(given - tl.max(given, 0))
    center = tl.load(centers + at, mask=at < COUNT, other=0.0)
    return tl.div_rn(tl.sum(weight * center, 0), tl.sum(weight, 0))


@triton.jit
def first_of_largest(logits: tl.tensor) -> tl.tensor:
    """int64[R]: of each row the first of the largest, NaN being the largest, as torch has it."""
    patterns = tl.where(logits == logits, logits, float("inf"))
    largest = tl.max(patterns, 1)
    nan = tl.max((logits != logits).to(tl.int32), 1) > 0
    chosen = tl.where(nan[:, None], logits != logits, patterns == largest[:, None])
    at = tl.arange(0, logits.shape[1])[None, :]
    return tl.min(tl.where(chosen, at, logits.shape[1]), 1).to(tl.int64)


@triton.jit
def expectation(
    rows: tl.tensor, centers: tl.tensor, held: tl.tensor, BINS: tl.constexpr, BLOCK: tl.constexpr
) -> tl.tensor:
    """float32[R]: the expectation over the two bins to both sides of the mode, which is what
    `wmrt.model.twohot.decode_mode` reads of logits rows[R, BINS]."""
    at = tl.arange(0, BLOCK)[None, :]
    inside = held[:, None] & (at < BINS)
    logits = tl.load(rows[:, None] + at, mask=inside, other=float("-inf"))
    mode = first_of_largest(logits)
    near = (tl.abs(at - mode[:, None]) <= 2) & (at < BINS)
    top = tl.max(tl.where(at == mode[:, None], logits, float("-inf")), 1)
    weight = tl.where(near, tl.exp(logits - top[:, None]), 0.0)
    center = tl.load(centers + at, mask=at < BINS, other=0.0)
    return tl.div_rn(tl.sum(weight * center, 1), tl.sum(weight, 1))


def consequences(
    outputs: Tensor,
    codes: Tensor,
    values: Tensor,
    weights: list[Tensor],
    category_sizes: list[int],
    reward_scale: float,
    *results: Tensor,
    dependent: bool = False,
) -> None:
    """See `wmrt.kernels.decode_arguments`, which says shapes and errors, and names the results;
    `dependent`: see `wmrt.kernels.triton.dependent`."""
    sizes = check_consequences(outputs, codes, values, weights, category_sizes, *results)
    decode = Decode(*weights)
    made = constants(sizes.numbers, sizes.bins, category_sizes, sizes.rewards, sizes.columns)
    consequences_kernel[GRID(batch=sizes.batch, **made)](
        outputs, codes, values, *decode, *results, reward_scale,
        **made, num_warps=1, **options(dependent),
    )  # fmt: skip


def constants(
    numbers: int, bins: int, category_sizes: list[int], rewards: int, columns: int
) -> dict[str, Any]:
    """Constants of the kernel."""
    logits = sum(category_sizes)
    return {
        "WIDTH": numbers * (bins + 1) + logits + rewards + 1,
        "COLUMNS": columns,
        "NUMBERS": numbers,
        "BINS": bins,
        "CATEGORIES": len(category_sizes),
        "LOGITS": logits,
        "REWARDS": rewards,
        "ROWS": ROWS,
        "BIN_BLOCK": triton.next_power_of_2(bins),
        "CLASS_BLOCK": triton.next_power_of_2(max(category_sizes, default=1)),
        "REWARD_BLOCK": triton.next_power_of_2(rewards),
    }


def aot_cases() -> list[AotCase]:
    """Presets small and 1.3b on a schema of 32 numbers and 12 categories."""
    floats = ("outputs", "values", "scales", "centers", "reward_centers", "following", "missing")
    signature = {
        **dict.fromkeys((*floats, "expected", "continues"), "*fp32"),
        **dict.fromkeys(("codes", "numbers", "ends"), "*i32"),
        "category": "*i64",
        "reward_scale": "fp32",
    }
    found = [
        AotCase(
            name=f"consequences.{name}",
            kernel=consequences_kernel,
            signature=signature,
            constants={**constants(32, bins, [32] * 12, rewards, 44), "DEPENDENT": False},
            warps=1,
            grid=GRID,
            arrays=ARRAYS,
        )
        for name, bins, rewards in (("small", 41, 21), ("1.3b", 63, 21))
    ]
    return [*found, dependent_case(found[1])]
