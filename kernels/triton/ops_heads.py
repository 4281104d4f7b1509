"""``torch.ops.wmrt``: `transition_attention`, `transition_attention_int8`, `dense`, `rms_norm_to`
and `action_decode`, what a step does between and behind the 4-bit matrices.

They write into tensors they are given and return nothing, so that a captured step allocates
nothing. On the CPU they compute by torch, on CUDA by triton, which is imported when one first runs
there; on Meta they check and compute nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.kernels.reference_state import embed_action
from wmrt.kernels.triton import checks_heads as checks
from wmrt.kernels.triton.launchers import function_of, on_cuda
from wmrt.quant.activations import GROUP, quantize_groups

_READ = "Tensor q, Tensor keys, Tensor values, Tensor slots, Tensor bias"
_SCHEMAS = (
    f"transition_attention({_READ}, Tensor(a!) attended) -> ()",
    f"transition_attention_int8({_READ}, Tensor(a!) codes, Tensor(b!) factors) -> ()",
    "dense(Tensor x, Tensor? norm, float eps, Tensor weight, Tensor? bias, str activation, "
    "Tensor(a!) out, bool wide=False) -> ()",
    "rms_norm_to(Tensor x, Tensor weight, float eps, Tensor(a!) out) -> ()",
    "action_decode(Tensor logits, Tensor centers, Tensor embedding, Tensor(a!) chunk, "
    "Tensor(b!) action, Tensor(c!) embedded) -> ()",
)
_LIBRARY: Any = cast(Any, torch.library).Library("wmrt", "FRAGMENT")  # its methods have no types


def _gathered(q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor) -> Tensor:
    """`Block.look` of the model, but for what lies in slots of bias -inf: it is not looked at."""
    batch, heads, dim = q.shape
    row, index = torch.arange(batch, device=q.device).unsqueeze(1), slots.long()
    place = (row, index) if keys.dim() == 4 else (index,)
    read = (bias != -math.inf)[:, :, None, None]
    own_keys, own_values = (torch.where(read, t[place], 0.0) for t in (keys, values))
    grouped = q.view(batch, keys.shape[-2], -1, dim)
    logits = torch.einsum("bghd,bngd->bghn", grouped, own_keys) / math.sqrt(dim)
    weights = (logits + bias[:, None, None, :]).softmax(-1)
    weights = weights.masked_fill((bias == -math.inf)[:, None, None, :], 0.0)  # NaN times 0
    return torch.einsum("bghn,bngd->bghd", weights, own_values).reshape(batch, heads, dim)


def _attention_on_cpu(
    q: Tensor, keys: Tensor, values: Tensor, slots: Tensor, bias: Tensor, attended: Tensor
) -> None:
    checks.attended_float(checks.attention(q, keys, values, slots, bias), q, attended)
    attended.copy_(_gathered(q, keys, values, slots, bias))


def _attention_on_meta(q: Tensor, *more: Tensor) -> None:
    checks.attended_float(checks.attention(q, *more[:4]), q, more[4])


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


def _int8_on_meta(q: Tensor, *more: Tensor) -> None:
    checks.attended_int8(checks.attention(q, *more[:4]), q, *more[4:])


def _dense_on_cpu(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    out: Tensor,
    wide: bool = False,
) -> None:
    sizes = checks.dense(x, norm, weight, bias, activation, out)
    given = x if norm is None else F.rms_norm(x, (sizes.columns,), norm, eps)
    if sizes.half and not wide:
        given = given.to(torch.bfloat16).float()
    y = F.linear(given, weight[:, : sizes.columns].float(), bias)
    out.copy_(F.gelu(y) if sizes.gelu else y)


def _dense_on_meta(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    out: Tensor,
    wide: bool = False,
) -> None:
    checks.dense(x, norm, weight, bias, activation, out)


def _norm_on_cpu(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    checks.rms_norm_to(x, weight, out)
    out.copy_(F.rms_norm(x, (x.shape[1],), weight, eps))


def _norm_on_meta(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    checks.rms_norm_to(x, weight, out)


def _decode_on_cpu(
    logits: Tensor,
    centers: Tensor,
    embedding: Tensor,
    chunk: Tensor,
    action: Tensor,
    embedded: Tensor,
) -> None:
    """`decode_mode` of the model, which is a floor up, and its embedding of an action."""
    checks.action_decode(logits, centers, embedding, chunk, action, embedded)
    mode = logits.argmax(-1, keepdim=True)
    near = (torch.arange(logits.shape[-1], device=logits.device) - mode).abs() <= checks.RADIUS
    weights = logits.masked_fill(~near, -math.inf).softmax(-1)
    chunk.copy_((weights * centers).sum(-1))
    action.copy_(chunk[:, 0])
    embedded.copy_(embed_action(action, embedding))


def _decode_on_meta(*given: Any) -> None:
    checks.action_decode(*given)


#: Kernels that one call of an operator launches on CUDA for up to 8 robots, in the order of
#: `_SCHEMAS`.
LAUNCHES = {
    "transition_attention": 1,
    "transition_attention_int8": 1,
    "dense": 1,
    "rms_norm_to": 1,
    "action_decode": 1,
}
#: The modules of their kernels, where those are called otherwise than the operator.
_MODULES = {"transition_attention_int8": "transition_attention", "rms_norm_to": "norm"}
ON_CUDA = {name: on_cuda(name, function_of(_MODULES.get(name, name), name)) for name in LAUNCHES}
_FUNCTIONS: dict[str, tuple[Callable[..., None], ...]] = {
    "CPU": (_attention_on_cpu, _int8_on_cpu, _dense_on_cpu, _norm_on_cpu, _decode_on_cpu),
    "CUDA": tuple(ON_CUDA.values()),
    "Meta": (_attention_on_meta, _int8_on_meta, _dense_on_meta, _norm_on_meta, _decode_on_meta),
}

for _schema in _SCHEMAS:
    _LIBRARY.define(_schema)
for _key, _functions in _FUNCTIONS.items():
    for _name, _function in zip(LAUNCHES, _functions, strict=True):
        _LIBRARY.impl(_name, _function, _key)
