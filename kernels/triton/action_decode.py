"""From logits to an action: the chunk, its first step, and that step's embedding, in one launch."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from wmrt.kernels.triton import checks_heads as checks
from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.arrays import arrays
from wmrt.kernels.triton.checks_heads import Decode
from wmrt.kernels.triton.dependent import dependent_case, follow, options
from wmrt.kernels.triton.formulas import Grid
from wmrt.kernels.triton.state_embed import embedded_action


@triton.jit
def decode_mode(logits: tl.tensor, centers: tl.tensor, RADIUS: tl.constexpr) -> tl.tensor:
    """Expectation of centers [1, S] over the bins within RADIUS of the largest of logits [R, S]:
    [R]. As `wmrt.model.twohot.decode_mode`: the first of equal ones, and NaN makes it NaN."""
    at = tl.arange(0, logits.shape[1])[None, :]
    # Bits of floats as integers that order as the floats do, both zeros as one and NaN on top;
    # below them the place, so that one maximum finds both.
    bits = (logits + 0.0).to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = tl.where(logits == logits, key, 0x7FFFFFFF).to(tl.int64)
    top = tl.max(key * 65536 + (65535 - at), 1, keep_dims=True)
    mode = 65535 - (top & 65535)
    bits = (top >> 16).to(tl.int32)
    largest = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    near = (at >= mode - RADIUS) & (at <= mode + RADIUS)
    weight = tl.where(near, tl.exp(logits - largest), 0.0)
    return tl.div_rn(tl.sum(weight * centers, 1), tl.sum(weight, 1))


GRID = Grid("batch")
#: Rows of `embedded` lie `stride` apart.
ARRAYS = arrays(
    "logits input batch, VALUES, BINS; centers weights BINS;"
    "table weights DIMS, KNOTS, ceil_div(EMBED, DIMS); chunk output batch, VALUES;"
    "action output batch, DIMS; embedded output batch, EMBED"
)


@triton.jit
def action_decode_kernel(
    logits: tl.tensor,
    centers: tl.tensor,
    table: tl.tensor,
    chunk: tl.tensor,
    action: tl.tensor,
    embedded: tl.tensor,
    stride: tl.tensor,
    VALUES: tl.constexpr,
    DIMS: tl.constexpr,
    BINS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    RADIUS: tl.constexpr,
    KNOTS: tl.constexpr,
    EMBED: tl.constexpr,
    PLACES: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """One program, one robot. `stride`: between rows of `embedded`."""
    robot = tl.program_id(0)
    value, at = tl.arange(0, ROWS), tl.arange(0, BLOCK)[None, :]
    inside = (value < VALUES)[:, None] & (at < BINS)
    place = logits + (robot * VALUES + value)[:, None] * BINS + at
    follow(DEPENDENT)
    given = tl.load(place, mask=inside, other=float("-inf"))
    decoded = decode_mode(given, tl.load(centers + at, mask=at < BINS, other=0.0), RADIUS)
    tl.store(chunk + robot * VALUES + value, decoded, mask=value < VALUES)
    tl.store(action + robot * DIMS + value, decoded, mask=value < DIMS)
    tl.debug_barrier()  # the action is read back by other lanes
    e = tl.arange(0, PLACES)
    acted = embedded_action(action + robot * DIMS, table, e, DIMS, KNOTS, EMBED)
    tl.store(embedded + robot * stride + e, acted, mask=e < EMBED)


def action_decode(
    logits: Tensor,
    centers: Tensor,
    embedding: Tensor,
    chunk: Tensor,
    action: Tensor,
    embedded: Tensor,
    *,
    dependent: bool = False,
) -> None:
    """The chunk behind logits, its first action and that action's embedding.

    Args:
        logits: float32[B, H, A, bins].
        centers: float32[bins].
        embedding: bfloat16 or float32 [A, knots, E / A].
        chunk, action, embedded: float32[B, H, A], [B, A] and [B, E], of which rows may lie apart.
        dependent: see `wmrt.kernels.triton.dependent`.

    Raises:
        UsageError: tensors that do not fit together.
        UnsupportedError: more logits of a robot than one program holds.
    """
    made = constants(checks.action_decode(logits, centers, embedding, chunk, action, embedded))
    action_decode_kernel[GRID(batch=len(logits))](
        logits,
        centers,
        embedding,
        chunk,
        action,
        embedded,
        embedded.stride(0),
        **made,
        num_warps=_warps(made),
        **options(dependent),
    )


def constants(sizes: Decode) -> dict[str, Any]:
    """Constants of the kernel."""
    return {
        "VALUES": sizes.steps * sizes.dims,
        "DIMS": sizes.dims,
        "BINS": sizes.bins,
        "ROWS": triton.next_power_of_2(sizes.steps * sizes.dims),
        "BLOCK": triton.next_power_of_2(sizes.bins),
        "RADIUS": checks.RADIUS,
        "KNOTS": sizes.knots,
        "EMBED": sizes.embed,
        "PLACES": triton.next_power_of_2(sizes.embed),
    }


def _warps(made: dict[str, Any]) -> int:
    """32 logits a lane; the shipped chunk is one warp, which needs no barriers."""
    return min(16, max(1, int(made["ROWS"] * made["BLOCK"]) // 1024))


def aot_cases() -> list[AotCase]:
    """The chunk of the presets `1.3b` and `small`, and a long one of an arm, 16 x 7."""
    floats = ("logits", "centers", "chunk", "action", "embedded")
    found = []
    for name, sizes in (
        ("1.3b", Decode(1, 8, 2, 64, 65, 64)),
        ("small", Decode(1, 8, 2, 64, 33, 32)),
        ("16x7", Decode(1, 16, 7, 64, 65, 70)),
    ):
        made = constants(sizes)
        found.append(
            AotCase(
                name=f"action_decode.{name}",
                kernel=action_decode_kernel,
                signature={**dict.fromkeys(floats, "*fp32"), "table": "*bf16", "stride": "i32"},
                constants={**made, "DEPENDENT": False},
                warps=_warps(made),
                grid=GRID,
                arrays=ARRAYS,
                scalars={"stride": sizes.embed},
            )
        )
    return [*found, dependent_case(found[0])]
