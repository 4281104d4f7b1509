"""``torch.ops.wmrt``: `rms_norm`, `rms_norm_int8` and `action_pack`.

On the CPU they compute by torch, on CUDA by triton, which is imported when one first runs there.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.kernels.triton import checks_ops, library
from wmrt.quant.activations import GROUP, quantize_groups

_SCHEMAS = (
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    "rms_norm_int8(Tensor x, Tensor weight, float eps, int padded_to) -> (Tensor, Tensor)",
    "action_pack(Tensor chunks) -> Tensor",
)
_LIBRARY = torch.library.Library("wmrt", "FRAGMENT")
#: Of `wmrt.model.action_quant`, which is a floor up: the largest code, packed bytes of a group.
_LEVELS, _BYTES = 7, 10

_require = functools.cache(library.require_kernels)


def _norm_on_cpu(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    checks_ops.rms_norm(x, weight)
    return F.rms_norm(x.float(), (x.shape[-1],), weight, eps)


def _norm_on_cuda(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    _require(x.device)
    from wmrt.kernels.triton.norm import rms_norm

    with torch.cuda.device(x.device):
        return rms_norm(x, weight, eps)


def _norm_on_meta(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    checks_ops.rms_norm(x, weight)
    return torch.empty_like(x, dtype=torch.float32)


def _int8_on_cpu(x: Tensor, weight: Tensor, eps: float, padded_to: int) -> tuple[Tensor, Tensor]:
    checks_ops.padded(checks_ops.rms_norm(x, weight)[1], padded_to)
    codes, scales = quantize_groups(_norm_on_cpu(x, weight, eps), padded_to=padded_to)
    return codes.to(torch.int8), scales


def _int8_on_cuda(x: Tensor, weight: Tensor, eps: float, padded_to: int) -> tuple[Tensor, Tensor]:
    _require(x.device)
    from wmrt.kernels.triton.norm import rms_norm_int8

    with torch.cuda.device(x.device):
        return rms_norm_int8(x, weight, eps, padded_to=padded_to)


def _int8_on_meta(x: Tensor, weight: Tensor, eps: float, padded_to: int) -> tuple[Tensor, Tensor]:
    wide = checks_ops.padded(checks_ops.rms_norm(x, weight)[1], padded_to)
    codes = x.new_empty((*x.shape[:-1], wide), dtype=torch.int8)
    return codes, x.new_empty((*x.shape[:-1], wide // GROUP), dtype=torch.float32)


def _pack_on_cpu(chunks: Tensor) -> Tensor:
    """The bytes of `ActionQuant.pack`."""
    checks_ops.action_pack(chunks)
    flat = chunks.transpose(-1, -2).flatten(-2)
    whole = F.pad(flat, (0, -flat.shape[-1] % checks_ops.ACTIONS))
    groups = whole.unflatten(-1, (-1, checks_ops.ACTIONS))
    scales = (groups.abs().amax(-1) / _LEVELS).half()
    steps = torch.where(scales > 0, scales.float(), 1.0)
    codes = (groups / steps.unsqueeze(-1)).round().nan_to_num(0.0).clamp(-_LEVELS, _LEVELS)
    nibbles = codes.to(torch.int8).view(torch.uint8) & 15
    pairs = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
    raw = scales.contiguous().view(torch.uint8).unflatten(-1, (-1, 2))
    return torch.cat([pairs, raw], -1).flatten(-2)


def _pack_on_cuda(chunks: Tensor) -> Tensor:
    _require(chunks.device)
    from wmrt.kernels.triton.action_quant import action_pack

    with torch.cuda.device(chunks.device):
        return action_pack(chunks)


def _pack_on_meta(chunks: Tensor) -> Tensor:
    _, groups = checks_ops.action_pack(chunks)
    return chunks.new_empty((*chunks.shape[:-2], groups * _BYTES), dtype=torch.uint8)


for _schema in _SCHEMAS:
    _LIBRARY.define(_schema)
for _key, *_functions in (
    ("CPU", _norm_on_cpu, _int8_on_cpu, _pack_on_cpu),
    ("CUDA", _norm_on_cuda, _int8_on_cuda, _pack_on_cuda),
    ("Meta", _norm_on_meta, _int8_on_meta, _pack_on_meta),
):
    for _schema, _function in zip(_SCHEMAS, _functions, strict=True):
        _LIBRARY.impl(_schema.split("(")[0], _function, _key)
