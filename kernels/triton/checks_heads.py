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
    """Sizes of one step's attention: `slots` are read of a ring of `window`."""

    batch: int
    heads: int
    kv_heads: int
    dim: int
    window: int
    slots: int


def attention(q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor) -> Attention:
    """Sizes behind q [B, H, hd], keys and values [B, W, KV, hd], slots and bias [B, k + 1].

    Raises `UsageError`: tensors that do not fit together.
    """
    batch = robots("q", q, 3)
    _, heads, dim = q.shape
    if keys.dim() != 4 or slots.dim() != 2:
        raise UsageError(
            f"keys are {list(keys.shape)} and slots {list(slots.shape)}; they have to be "
            "[B, W, KV, hd] and [B, k + 1]"
        )
    window, kv_heads, count = keys.shape[1], keys.shape[2], slots.shape[1]
    if min(dim, kv_heads) < 1 or heads < 1 or heads % kv_heads or not 1 <= count <= window:
        raise UsageError(
            f"{heads} heads over {kv_heads} of keys, {dim} wide, reading {count} of {window} "
            "slots: heads have to be a multiple, and slots read 1 to all of them"
        )
    require("q", q, torch.float32, (batch, heads, dim))
    ring = (batch, window, kv_heads, dim)
    require("keys", keys, torch.float32, ring)
    require("values", values, torch.float32, ring)
    require("slots", slots, torch.int32, (batch, count))
    require("bias", bias, torch.float32, (batch, count))
    together(q=q, keys=keys, values=values, slots=slots, bias=bias)
    return Attention(batch, heads, kv_heads, dim, window, count)


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
