"""A small matrix of bfloat16 or float32 times 1 to 16 vectors, with what stands before and behind
it: RMSNorm, bias, GELU. One launch for each 8 of them.

For the heads, whose matrices are not quantized to 4 bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from wmrt.kernels.triton import checks_heads as checks
from wmrt.kernels.triton.aot_cases import AotCase
from wmrt.kernels.triton.arrays import arrays, not_followed
from wmrt.kernels.triton.checks_heads import Dense
from wmrt.kernels.triton.dense_turns import inverse_rms, turns
from wmrt.kernels.triton.dependent import dependent_case, follow, options
from wmrt.kernels.triton.formulas import Grid

#: 32-bit words that a warp takes of a row in one turn: 16 bytes a lane.
TURN = 128
#: Most turns whose weights are on their way at once: 32 registers with two rows of a program. With
#: 5 or more sm_87 took 130 registers.
AHEAD = 4
#: Vectors of a launch. 12 of rows of 2048 took 168 registers and spilled (sm_90), of rows of 2112
#: with float32 x 254; 8 take 138. A second launch reads the weights from the cache of most devices.
VECTORS = 8
GRID = Grid("ceil_div(N, ROWS)")
#: Rows of `x` and `out` lie `x_stride` and `out_stride` apart.
ARRAYS = arrays(
    "x input BATCH, K; norm weights K; weight weights N, WORDS; bias weights N; out output BATCH, N"
)


@triton.jit
def dense_kernel(
    x: tl.tensor,
    norm: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    LOOPS: tl.constexpr,
    LEFT: tl.constexpr,
    HALF: tl.constexpr,
    ROUND: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    GELU: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """`ROWS` rows of a weight [N, WORDS] of 32-bit words times x[BATCH, K], in one warp.

    A warp alone has no barriers, and each vector's sums the same order in every batch. `CHUNK`
    turns at a time, `LOOPS` times, and `LEFT` more. `HALF`: a word holds two bfloat16.
    """
    mine = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = weight + (tl.minimum(mine, N - 1) * WORDS)[:, None, None]
    follow(DEPENDENT)
    acc: tl.tensor = ()
    for _ in tl.static_range(BATCH):
        acc = acc + (tl.zeros((ROWS, 32), tl.float32),)
    scales = inverse_rms(x, x_stride, eps, K, BATCH) if NORM else ()
    for loop in range(LOOPS):
        acc = turns(
            acc, place, x, norm, scales, x_stride, loop * CHUNK,
            K, WORDS, CHUNK, False, HALF, ROUND, NORM,
        )  # fmt: skip
    acc = turns(
        acc, place, x, norm, scales, x_stride, LOOPS * CHUNK,
        K, WORDS, LEFT, True, HALF, ROUND, NORM,
    )  # fmt: skip
    store(acc, mine, bias, out, out_stride, N, BIAS, GELU)


@triton.jit
def store(
    acc: tl.tensor,
    mine: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    out_stride: tl.tensor,
    N: tl.constexpr,
    BIAS: tl.constexpr,
    GELU: tl.constexpr,
) -> None:
    """The sums over lanes, with bias and GELU, to rows `mine` of every vector's result."""
    # Every lane holds the sums, the first one stores them from where they are.
    lane = tl.arange(0, 32)[None, :]
    at = mine[:, None] + lane * 0
    own = (mine < N)[:, None] & (lane == 0)
    added = tl.load(bias + at, mask=own, other=0.0) if BIAS else 0.0
    for b in tl.static_range(len(acc)):
        y = tl.broadcast_to(tl.sum(acc[b], 1)[:, None], own.shape) + added
        if GELU:
            y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
        tl.store(out + b * out_stride + at, y, mask=own)


def dense(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    out: Tensor,
    wide: bool = False,
    *,
    dependent: bool = False,
) -> None:
    """out[b] = activation(weight norm(x[b]) + bias), float32.

    Args:
        x: float32[B, K]; rows may lie apart.
        norm: weight float32[K] of an RMSNorm with `eps` before, or None.
        weight: bfloat16 or float32 [N, K'], K' being K rounded up to a multiple of 8; what is
            behind K has to be finite.
        bias: float32[N] or None.
        activation: ``none``, or ``gelu``: the exact one.
        out: float32[B, N]; rows may lie apart.
        wide: multiply bfloat16 weights by float32 x. Without, x is rounded to bfloat16 for them, as
            linears of recipe ``bf16`` do; products are exact then, sums float32 in both.
        dependent: see `wmrt.kernels.triton.dependent`.

    Raises:
        UsageError: tensors that do not fit together, or another activation.
        UnsupportedError: a weight of 2^31 words or more.
    """
    sizes = checks.dense(x, norm, weight, bias, activation, out)
    for start in range(0, sizes.batch, VECTORS):
        some = slice(start, start + VECTORS)
        given = sizes._replace(batch=len(x[some]))
        _launch(x[some], norm, eps, weight, bias, out[some], given, wide=wide, dependent=dependent)


def _launch(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    sizes: Dense,
    *,
    wide: bool,
    dependent: bool,
) -> None:
    made = constants(sizes, wide=wide)
    words = weight.view(torch.int32) if sizes.half else weight
    dense_kernel[GRID(**made)](
        x,
        weight if norm is None else norm,
        words,
        weight if bias is None else bias,
        out,
        x.stride(0),
        out.stride(0),
        eps,
        **made,
        num_warps=1,
        **options(dependent),
    )


def constants(sizes: Dense, *, wide: bool) -> dict[str, Any]:
    """Constants of the kernel; none but `ROWS` and `CHUNK` depend on the batch, no sum does."""
    words = sizes.width // 2 if sizes.half else sizes.width
    count = -(-words // TURN)
    # With several vectors registers hold sums, and each turn has more to do while others wait.
    ahead = AHEAD if sizes.batch == 1 else 1
    chunk = -(-count // -(-count // ahead))
    return {
        "N": sizes.rows,
        "K": sizes.columns,
        "WORDS": words,
        "BATCH": sizes.batch,
        "ROWS": 2 if sizes.batch == 1 else 4,
        "CHUNK": chunk,
        "LOOPS": (count - 1) // chunk,
        "LEFT": count - (count - 1) // chunk * chunk,
        "HALF": sizes.half,
        "ROUND": sizes.half and not wide,
        "NORM": sizes.norm,
        "BIAS": sizes.bias,
        "GELU": sizes.gelu,
    }


def aot_cases() -> list[AotCase]:
    """The heads of the preset `1.3b` by layer, with one robot; the widest with 8; `small`'s."""
    hidden = Dense(1, 2048, 2048, 2048, half=True, norm=True, bias=False, gelu=True)
    body = Dense(1, 1024, 2112, 2112, half=True, norm=False, bias=True, gelu=True)
    found = [
        _case("1.3b.action_hidden", hidden),
        _case("1.3b.action_out", hidden._replace(rows=1024, norm=False, gelu=False)),
        _case("1.3b.body", body, wide=True),
        _case("1.3b.outputs", body._replace(rows=2474, columns=1024, width=1024, gelu=False), True),
        _case("1.3b.body_float", body._replace(half=False)),
        _case("1.3b.action_hidden.batch8", hidden._replace(batch=8)),
        _case("small.action_hidden", hidden._replace(rows=256, columns=256, width=256)),
    ]
    return [*found, dependent_case(found[0])]


def _case(name: str, sizes: Dense, wide: bool = False) -> AotCase:
    made = constants(sizes, wide=wide)
    pointers = dict.fromkeys(("x", "norm", "bias", "out"), "*fp32")
    strides = {"x_stride": "i32", "out_stride": "i32", "eps": "fp32"}
    return AotCase(
        name=f"dense.{name}",
        kernel=dense_kernel,
        signature={**pointers, "weight": "*i32" if sizes.half else "*fp32", **strides},
        constants={**made, "DEPENDENT": False},
        warps=1,
        grid=GRID,
        arrays=not_followed(ARRAYS, *(n for n in ("norm", "bias") if not made[n.upper()])),
        scalars={"x_stride": sizes.columns, "out_stride": sizes.rows},
        aligned=(*pointers, "weight", "x_stride"),
        weights_per_program=made["ROWS"] * sizes.width,
        weight_bits=16 if sizes.half else 32,
        slow=sizes.batch > 4,
    )
