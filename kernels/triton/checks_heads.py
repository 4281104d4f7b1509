"""What the operators of a step's heads take: sizes read off their tensors, or an error. No triton.

The launchers, the computations on the CPU and those on Meta all ask here, so that they refuse the
same things in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.quant.activations import GROUP

#: Robots of one step.
ROBOTS = 16
#: What the rows of int8 activations are padded to: a step of the 4-bit kernels.
WHOLE = 256


def require(
    name: str,
    tensor: Tensor,
    dtype: torch.dtype,
    shape: Sequence[int],
    *,
    rows_apart: bool = False,
) -> None:
    """`UsageError` unless `tensor` is a contiguous `dtype` of `shape`; with `rows_apart` only the
    last axis has to be dense, as in a slice of columns of a wider buffer."""
    dense = tensor.is_contiguous()
    if rows_apart and tensor.dim() == 2:
        dense = tensor.shape[1] <= 1 or tensor.stride(1) == 1
        dense = dense and (tensor.shape[0] <= 1 or tensor.stride(0) >= tensor.shape[1])
    if tensor.dtype != dtype or list(tensor.shape) != list(shape) or not dense:
        kind = "rows of which each is dense" if rows_apart else "contiguous"
        raise UsageError(
            f"{name} is {tensor.dtype} {list(tensor.shape)} with strides {tensor.stride()}; it has "
            f"to be {dtype} {list(shape)}, {kind}"
        )


def together(**tensors: Tensor | None) -> None:
    """`UsageError` unless all are on the device of the first."""
    given = {name: t.device for name, t in tensors.items() if t is not None}
    first, device = next(iter(given.items()))
    for name, other in given.items():
        if other != device:
            raise UsageError(f"{name} is on {other} and {first} on {device}; move one of them")


def robots(name: str, tensor: Tensor, dims: int) -> int:
    """The number of robots, the first of `dims` axes; `UsageError` unless 1 to `ROBOTS`."""
    if tensor.dim() != dims or not 1 <= tensor.shape[0] <= ROBOTS:
        raise UsageError(
            f"{name} is {list(tensor.shape)}; it takes {dims} axes, the first of 1 to {ROBOTS} "
            "robots"
        )
    return int(tensor.shape[0])


class Attention(NamedTuple):
    """Sizes of one step's attention: `slots` are read of a ring of `window`, or, where that is 0,
    of all rings, which they count over."""

    batch: int
    heads: int
    kv_heads: int
    dim: int
    window: int
    slots: int


def attention(q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor) -> Attention:
    """Sizes behind q [B, H, hd], keys and values [B, W, KV, hd] or [S, KV, hd], slots and bias
    [B, k + 1].

    Raises `UsageError`: tensors that do not fit together.
    """
    batch = robots("q", q, 3)
    _, heads, dim = q.shape
    if keys.dim() not in (3, 4) or slots.dim() != 2:
        raise UsageError(
            f"keys are {list(keys.shape)} and slots {list(slots.shape)}; they have to be "
            "[B, W, KV, hd], or [S, KV, hd] of all rings, and [B, k + 1]"
        )
    ring = (batch, *keys.shape[1:3], dim) if keys.dim() == 4 else (*keys.shape[:2], dim)
    there, kv_heads, count = ring[-3], ring[-2], slots.shape[1]
    if min(dim, kv_heads) < 1 or heads < 1 or heads % kv_heads or not 1 <= count <= there:
        raise UsageError(
            f"{heads} heads over {kv_heads} of keys, {dim} wide, reading {count} of {there} "
            "slots: heads have to be a multiple, and slots read 1 to all of them"
        )
    require("q", q, torch.float32, (batch, heads, dim))
    require("keys", keys, torch.float32, ring)
    require("values", values, torch.float32, ring)
    require("slots", slots, torch.int32, (batch, count))
    require("bias", bias, torch.float32, (batch, count))
    together(q=q, keys=keys, values=values, slots=slots, bias=bias)
    return Attention(batch, heads, kv_heads, dim, there if keys.dim() == 4 else 0, count)


def attended_float(sizes: Attention, q: Tensor, attended: Tensor) -> None:
    """The output float32[B, H, hd] of `transition_attention`."""
    require("attended", attended, torch.float32, (sizes.batch, sizes.heads, sizes.dim))
    together(q=q, attended=attended)


def attended_int8(sizes: Attention, q: Tensor, codes: Tensor, factors: Tensor) -> None:
    """The outputs int8[B, W'] and float32[B, W'/32], W' being H * hd rounded up to `WHOLE`.

    Raises `UnsupportedError` for heads that are no whole groups: a scale would span two programs.
    """
    if sizes.dim % GROUP:
        raise UnsupportedError(
            f"heads are {sizes.dim} wide; as int8 they have to be a multiple of {GROUP}, take "
            "transition_attention and quantize_int8_g32"
        )
    width = -(-sizes.heads * sizes.dim // WHOLE) * WHOLE
    require("codes", codes, torch.int8, (sizes.batch, width))
    require("factors", factors, torch.float32, (sizes.batch, width // GROUP))
    together(q=q, codes=codes, factors=factors)


class Dense(NamedTuple):
    """A matrix [rows, width] of which `columns` count, for `batch` vectors; `half`: bfloat16."""

    batch: int
    rows: int
    columns: int
    width: int
    half: bool
    norm: bool
    bias: bool
    gelu: bool


#: What `dense` may end with.
ACTIVATIONS = ("none", "gelu")
#: What the columns of a matrix of `dense` are padded to: 16 bytes of bfloat16.
ALIGNED = 8


def dense(
    x: Tensor,
    norm: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    out: Tensor,
) -> Dense:
    """Sizes behind x [B, K], weight [N, K'], out [B, N]; see the launcher.

    Raises `UsageError`: tensors that do not fit, or an activation that is none; `UnsupportedError`:
    a weight of 2^31 words.
    """
    batch = robots("x", x, 2)
    if activation not in ACTIVATIONS:
        raise UsageError(f"activation {activation!r}: allowed are {', '.join(ACTIVATIONS)}")
    columns = int(x.shape[1])
    width = -(-columns // ALIGNED) * ALIGNED
    kind = weight.dtype if weight.dtype == torch.bfloat16 else torch.float32
    rows = int(weight.shape[0]) if weight.dim() else 0
    if rows < 1 or columns < 1:
        raise UsageError(f"the weight is {list(weight.shape)} for {columns} columns; both count")
    require("x", x, torch.float32, (batch, columns), rows_apart=True)
    require("weight", weight, kind, (rows, width))
    if norm is not None:
        require("norm", norm, torch.float32, (columns,))
    if bias is not None:
        require("bias", bias, torch.float32, (rows,))
    require("out", out, torch.float32, (batch, rows), rows_apart=True)
    together(x=x, norm=norm, weight=weight, bias=bias, out=out)
    if weight.numel() >= 2**31:
        raise UnsupportedError(f"a weight of {weight.numel()} numbers is too large; split its rows")
    if weight.device.type != "meta" and weight.data_ptr() % 16:
        raise UsageError("the weight has to lie at a multiple of 16 bytes; copy it with .clone()")
    half, gelu = kind == torch.bfloat16, activation == "gelu"
    return Dense(batch, rows, columns, width, half, norm is not None, bias is not None, gelu)


class Decode(NamedTuple):
    """Sizes of a chunk's distributions and of the embedding of its first action."""

    batch: int
    steps: int
    dims: int
    bins: int
    knots: int
    embed: int


#: Bins on both sides of the mode that count, as in `wmrt.model.twohot`.
RADIUS = 2
#: Logits of a robot that one program takes.
MOST_LOGITS = 1 << 16


def action_decode(
    logits: Tensor,
    centers: Tensor,
    embedding: Tensor,
    chunk: Tensor,
    action: Tensor,
    embedded: Tensor,
) -> Decode:
    """Sizes behind logits [B, H, A, bins] and a table [A, knots, E / A]; see the launcher.

    Raises `UsageError`: tensors that do not fit together; `UnsupportedError`: too many logits.
    """
    batch = robots("logits", logits, 4)
    _, steps, dims, bins = map(int, logits.shape)
    if min(steps, dims, bins) < 1 or embedding.dim() != 3 or min(embedding.shape) < 1:
        raise UsageError(
            f"logits are {list(logits.shape)} and the embedding {list(embedding.shape)}; they have "
            "to be [B, H, A, bins] and [A, knots, E / A], all of them at least 1"
        )
    knots, embed = int(embedding.shape[1]), dims * int(embedding.shape[2])
    kind = embedding.dtype if embedding.dtype == torch.bfloat16 else torch.float32
    if knots < 2:
        raise UsageError(f"an embedding of {knots} knots; it takes 2 to interpolate between")
    require("logits", logits, torch.float32, (batch, steps, dims, bins))
    require("centers", centers, torch.float32, (bins,))
    require("embedding", embedding, kind, (dims, knots, embedding.shape[2]))
    require("chunk", chunk, torch.float32, (batch, steps, dims))
    require("action", action, torch.float32, (batch, dims))
    require("embedded", embedded, torch.float32, (batch, embed), rows_apart=True)
    together(
        logits=logits, centers=centers, embedding=embedding, chunk=chunk, action=action,
        embedded=embedded,
    )  # fmt: skip
    held = (1 << (steps * dims - 1).bit_length()) << (bins - 1).bit_length()
    if held > MOST_LOGITS:
        raise UnsupportedError(
            f"a chunk of {steps} x {dims} x {bins} logits; one program holds {MOST_LOGITS}, both "
            "factors rounded up to powers of two"
        )
    return Decode(batch, steps, dims, bins, knots, embed)


#: Widest row that one program of RMSNorm keeps in registers.
WIDEST = 16384


def rms_norm_to(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """x and out [B, K], weight [K]: `UsageError` where they do not fit; see the launcher."""
    batch = robots("x", x, 2)
    width = int(x.shape[1])
    if not 1 <= width <= WIDEST:
        raise UsageError(f"rows of {width}; RMSNorm takes 1 to {WIDEST}")
    require("x", x, torch.float32, (batch, width))
    require("weight", weight, torch.float32, (width,))
    require("out", out, torch.float32, (batch, width), rows_apart=True)
    together(x=x, weight=weight, out=out)
