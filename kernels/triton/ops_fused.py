"""``torch.ops.wmrt``: the matrices of a step with what stands before and behind each of them,
`norm_qkv_rope_store`, `gemv_residual` and `norm_gate_up`.

They write into tensors they are given and return nothing, so that a step allocates nothing. On the
CPU they compute by torch, which is what the kernels are compared with; on CUDA by triton, imported
when one first runs there; on Meta they check their arguments.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.kernels import reference
from wmrt.kernels.triton.fused_checks import Matrix, check_gate_up, check_qkv, check_residual
from wmrt.kernels.triton.linear import chosen, weight_of
from wmrt.quant.activations import quantize_groups

#: Kernels that one call launches on CUDA for one robot; from two robots on the norm is one more.
LAUNCHES = {"norm_qkv_rope_store": 1, "gemv_residual": 1, "norm_gate_up": 1}

_MATRIX = "Tensor words, Tensor lane_scales, str format, float global_scale"
_SCHEMAS = (
    f"norm_qkv_rope_store(Tensor x, Tensor norm, float eps, {_MATRIX}, Tensor cos, Tensor sin, "
    "Tensor slots, Tensor(a!) work, Tensor(b!) q, Tensor(c!) keys, Tensor(d!) values) -> ()",
    f"gemv_residual(Tensor codes, Tensor factors, {_MATRIX}, Tensor(a!) x) -> ()",
    f"norm_gate_up(Tensor x, Tensor norm, float eps, {_MATRIX}, Tensor(a!) work, "
    "Tensor(b!) codes, Tensor(c!) factors) -> ()",
)
_LIBRARY: Any = cast(Any, torch.library).Library("wmrt", "FRAGMENT")  # its methods have no types


def _product(codes: Tensor, factors: Tensor, matrix: Matrix) -> Tensor:
    weight = weight_of(matrix.words, matrix.lane_scales, matrix.format, matrix.global_scale)
    return reference.dots_a8(codes.float(), factors, weight)


def _normed_product(x: Tensor, norm: Tensor, eps: float, matrix: Matrix) -> Tensor:
    normed = F.rms_norm(x, (x.shape[1],), norm, eps)
    return _product(*quantize_groups(normed, padded_to=matrix.columns), matrix)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `wmrt.model.rope.rotate`, which is a floor up; x [B, heads, hd]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def _qkv_on_cpu(
    x: Tensor,
    norm: Tensor,
    eps: float,
    words: Tensor,
    lane_scales: Tensor,
    format: str,
    global_scale: float,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    work: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    matrix = Matrix(words, lane_scales, format, global_scale)
    check_qkv(x, norm, matrix, cos, sin, slots, work, q, keys, values)
    heads = _normed_product(x, norm, eps, matrix).view(len(x), -1, q.shape[2])
    sizes = [q.shape[1], keys.shape[2], keys.shape[2]]
    found_q, found_k, found_v = torch.split(heads, sizes, dim=1)
    row, slot = torch.arange(len(x)), slots[:, 0].long()
    q.copy_(_rotated(found_q, cos, sin))
    keys[row, slot], values[row, slot] = _rotated(found_k, cos, sin), found_v


def _qkv_on_cuda(
    x: Tensor,
    norm: Tensor,
    eps: float,
    words: Tensor,
    lane_scales: Tensor,
    format: str,
    global_scale: float,
    *rest: Tensor,
) -> None:
    how = chosen(x.device)
    from wmrt.kernels.triton.norm_qkv_rope_store import launch

    matrix = Matrix(words, lane_scales, format, global_scale)
    with torch.cuda.device(x.device):
        launch(how, x, norm, eps, matrix, *rest)


def _qkv_on_meta(
    x: Tensor,
    norm: Tensor,
    eps: float,
    words: Tensor,
    lane_scales: Tensor,
    format: str,
    global_scale: float,
    *rest: Tensor,
) -> None:
    check_qkv(x, norm, Matrix(words, lane_scales, format, global_scale), *rest)


def _residual_on_cpu(
    codes: Tensor,
    factors: Tensor,
    words: Tensor,
    lane_scales: Tensor,
    format: str,
    global_scale: float,
    x: Tensor,
) -> None:
    matrix = Matrix(words, lane_scales, format, global_scale)
    check_residual(codes, factors, matrix, x)
    x += _product(codes, factors, matrix)


def _residual_on_cuda(
    codes: Tensor,
    factors: Tensor,
    words: Tensor,
    lane_scales: Tensor,
    format: str,
    global_scale: float,
    x: Tensor,
) -> None:
    how = chosen(x.device)
    from wmrt.kernels.triton.gemv_residual import launch

    with torch.cuda.device(x.device):
        launch(how, codes, factors, Matrix(words, lane_scales, format, global_scale), x)


def _residual_on_meta(
    codes: Tensor,
    factors: Tensor,
    words: Tensor,
    lane_scales: Tensor,
    format: str,
    global_scale: float,
    x: Tensor,
) -> None:
    check_residual(codes, factors, Matrix(words, lane_scales, format, global_scale), x)


def _gate_up_on_cpu(
    x: Tensor,
    norm: Tensor,
    eps: float,
    words: Tensor,
    lane_scales: Tensor,
    format: str,
    global_scale: float,
    work: Tensor,
    codes: Tensor,
    factors: Tensor,
) -> None:
    matrix = Matrix(words, lane_scales, format, global_scale)
    check_gate_up(x, norm, matrix, work, codes, factors)
    gate, up = _normed_product(x, norm, eps, matrix).chunk(2, dim=1)
    found, steps = quantize_groups(F.silu(gate) * up)
    codes[:, : found.shape[1]] = found.to(torch.int8)
    factors[:, : steps.shape[1]] = steps


def _gate_up_on_cuda(
    x: Tensor,
    norm: Tensor,
    eps: float,
    words: Tensor,
    lane_scales: Tensor,
    format: str,
    global_scale: float,
    *rest: Tensor,
) -> None:
    how = chosen(x.device)
    from wmrt.kernels.triton.norm_gate_up import launch

    matrix = Matrix(words, lane_scales, format, global_scale)
    with torch.cuda.device(x.device):
        launch(how, x, norm, eps, matrix, *rest)


def _gate_up_on_meta(
    x: Tensor,
    norm: Tensor,
    eps: float,
    words: Tensor,
    lane_scales: Tensor,
    format: str,
    global_scale: float,
    *rest: Tensor,
) -> None:
    check_gate_up(x, norm, Matrix(words, lane_scales, format, global_scale), *rest)


for _schema in _SCHEMAS:
    _LIBRARY.define(_schema)
for _key, *_functions in (
    ("CPU", _qkv_on_cpu, _residual_on_cpu, _gate_up_on_cpu),
    ("CUDA", _qkv_on_cuda, _residual_on_cuda, _gate_up_on_cuda),
    ("Meta", _qkv_on_meta, _residual_on_meta, _gate_up_on_meta),
):
    for _schema, _function in zip(_SCHEMAS, _functions, strict=True):
        _LIBRARY.impl(_schema.split("(")[0], _function, _key)
