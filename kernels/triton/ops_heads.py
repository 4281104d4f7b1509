"""``torch.ops.wmrt``: `transition_attention` and `transition_attention_int8`.

They write into tensors they are given and return nothing, so that a captured step allocates
nothing. On the CPU they compute by torch, on CUDA by triton, which is imported when one first runs
there; on Meta they check and compute nothing.
"""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import torch
from torch import Tensor

from wmrt.kernels.triton import checks_heads as checks
from wmrt.kernels.triton import library
from wmrt.quant.activations import GROUP, quantize_groups

_READ = "Tensor q, Tensor keys, Tensor values, Tensor slots, Tensor bias"
_SCHEMAS = (
    f"transition_attention({_READ}, Tensor(a!) attended) -> ()",
    f"transition_attention_int8({_READ}, Tensor(a!) codes, Tensor(b!) factors) -> ()",
)
_LIBRARY: Any = cast(Any, torch.library).Library("wmrt", "FRAGMENT")  # its methods have no types

_require = functools.cache(library.require_kernels)


def _gathered(q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor) -> Tensor:
    """`Block.look` of the model, but for what lies in slots of bias -inf: it is not looked at."""
    batch, heads, dim = q.shape
    row, index = torch.arange(batch, device=q.device).unsqueeze(1), slots.long()
    read = (bias != -math.inf)[:, :, None, None]
    own_keys, own_values = (torch.where(read, t[row, index], 0.0) for t in (keys, values))
    grouped = q.view(batch, keys.shape[2], -1, dim)
    logits = torch.einsum("bghd,bngd->bghn", grouped, own_keys) / math.sqrt(dim)
    weights = (logits + bias[:, None, None, :]).softmax(-1)
    weights = weights.masked_fill((bias == -math.inf)[:, None, None, :], 0.0)  # NaN times 0
    return torch.einsum("bghn,bngd->bghd", weights, own_values).reshape(batch, heads, dim)


def _attention_on_cpu(
    q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor, attended: Tensor
) -> None:
    checks.attended_float(checks.attention(q, keys, values, slots, bias), q, attended)
    attended.copy_(_gathered(q, keys, values, slots, bias))


def _attention_on_cuda(
    q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor, attended: Tensor
) -> None:
    _require(q.device)
    from wmrt.kernels.triton import transition_attention as kernel

    kernel.transition_attention(q, keys, values, slots, bias, attended)


def _attention_on_meta(
    q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor, attended: Tensor
) -> None:
    checks.attended_float(checks.attention(q, keys, values, slots, bias), q, attended)


def _int8_on_cpu(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    bias: Tensor,
    codes: Tensor,
    factors: Tensor,
) -> None:
    checks.attended_int8(checks.attention(q, keys, values, slots, bias), q, codes, factors)
    found = _gathered(q, keys, values, slots, bias).flatten(1)
    whole, scales = quantize_groups(found)
    codes[:, : found.shape[1]] = whole.to(torch.int8)
    factors[:, : found.shape[1] // GROUP] = scales


def _int8_on_cuda(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    bias: Tensor,
    codes: Tensor,
    factors: Tensor,
) -> None:
    _require(q.device)
    from wmrt.kernels.triton import transition_attention as kernel

    kernel.transition_attention_int8(q, keys, values, slots, bias, codes, factors)


def _int8_on_meta(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    bias: Tensor,
    codes: Tensor,
    factors: Tensor,
) -> None:
    checks.attended_int8(checks.attention(q, keys, values, slots, bias), q, codes, factors)


#: By operator, in the order of `_SCHEMAS`: launches of one call.
LAUNCHES = {"transition_attention": 1, "transition_attention_int8": 1}
ON_CUDA = dict(zip(LAUNCHES, (_attention_on_cuda, _int8_on_cuda), strict=True))

for _schema in _SCHEMAS:
    _LIBRARY.define(_schema)
for _key, _functions in (
    ("CPU", (_attention_on_cpu, _int8_on_cpu)),
    ("CUDA", tuple(ON_CUDA.values())),
    ("Meta", (_attention_on_meta, _int8_on_meta)),
):
    for _name, _function in zip(LAUNCHES, _functions, strict=True):
        _LIBRARY.impl(_name, _function, _key)
