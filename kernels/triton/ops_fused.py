"""``torch.ops.wmrt``: the matrices of a step with what stands before and behind each of them,
`norm_qkv_rope_store`, `gemv_residual` and `norm_gate_up`.

They write into tensors they are given and return nothing, so that a step allocates nothing. On the
CPU they compute by torch, which is what the kernels are compared with; on CUDA by triton, imported
when one first runs there; on Meta they check their arguments. The tensors of the matrix that is
read next may be told at the end: kernels ask it into the cache (`ahead`), nothing else uses it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.kernels import reference
from wmrt.kernels.triton.fused_checks import Matrix, check_gate_up, check_qkv, check_residual
from wmrt.kernels.triton.launchers import on_cuda
from wmrt.kernels.triton.linear import weight_of
from wmrt.quant.activations import quantize_groups

#: Kernels that one call launches on CUDA for one robot; from two robots on the norm is one more.
LAUNCHES = {"norm_qkv_rope_store": 1, "gemv_residual": 1, "norm_gate_up": 1}

_MATRIX = "Tensor words, Tensor lane_scales, str format, float global_scale"
_NEXT = "Tensor? next_words=None, Tensor? next_scales=None"
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


def _qkv(
    x: Tensor,
    norm: Tensor,
    eps: float,
    matrix: Matrix,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    work: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *following: Tensor | None,
) -> None:
    heads = _normed_product(x, norm, eps, matrix).view(len(x), -1, q.shape[2])
    sizes = [q.shape[1], keys.shape[-2], keys.shape[-2]]
    found_q, found_k, found_v = torch.split(heads, sizes, dim=1)
    own, slot = torch.arange(len(x)), slots[:, 0].long()
    place = (own, slot) if keys.dim() == 4 else (slot,)
    q.copy_(_rotated(found_q, cos, sin))
    keys[place], values[place] = _rotated(found_k, cos, sin), found_v


def _residual(
    codes: Tensor, factors: Tensor, matrix: Matrix, x: Tensor, *following: Tensor | None
) -> None:
    x += _product(codes, factors, matrix)


def _gate_up(
    x: Tensor,
    norm: Tensor,
    eps: float,
    matrix: Matrix,
    work: Tensor,
    codes: Tensor,
    factors: Tensor,
    *following: Tensor | None,
) -> None:
    gate, up = _normed_product(x, norm, eps, matrix).chunk(2, dim=1)
    found, steps = quantize_groups(F.silu(gate) * up)
    codes[:, : found.shape[1]] = found.to(torch.int8)
    factors[:, : steps.shape[1]] = steps


@dataclass(frozen=True)
class _Operator:
    """One operator: the arguments before and behind its matrix, how many tensors and numbers are
    before it, what checks all of them and what computes on the CPU. Its kernel is the function
    `launch` of the module of its name."""

    name: str
    before: str
    behind: str
    check: Callable[..., None]
    reference: Callable[..., None]

    @property
    def schema(self) -> str:
        return f"{self.name}({self.before}, {_MATRIX}, {self.behind}, {_NEXT}) -> ()"

    def packed(self, given: Sequence[Any]) -> list[Any]:
        """Arguments of the schema with its matrix as one."""
        at = self.before.count(",") + 1
        return [*given[:at], Matrix(*given[at : at + 4]), *given[at + 4 :]]

    def checked(self, *given: Any) -> None:
        """Also what Meta does: any number will do, the rest has to fit."""
        self.check(*(g for g in self.packed(given) if not isinstance(g, float)))

    def on_cpu(self, *given: Any) -> None:
        self.checked(*given)
        self.reference(*self.packed(given))

    def launch(self, how: Any, *given: Any) -> None:
        """By triton, for a `Variant`."""
        module = importlib.import_module(f"wmrt.kernels.triton.{self.name}")
        module.launch(how, *self.packed(given))


_OPERATORS = (
    _Operator(
        "norm_qkv_rope_store",
        "Tensor x, Tensor norm, float eps",
        "Tensor cos, Tensor sin, Tensor slots, Tensor(a!) work, Tensor(b!) q, Tensor(c!) keys, "
        "Tensor(d!) values",
        check_qkv,
        _qkv,
    ),
    _Operator(
        "gemv_residual", "Tensor codes, Tensor factors", "Tensor(a!) x", check_residual, _residual
    ),
    _Operator(
        "norm_gate_up",
        "Tensor x, Tensor norm, float eps",
        "Tensor(a!) work, Tensor(b!) codes, Tensor(c!) factors",
        check_gate_up,
        _gate_up,
    ),
)
for _operator in _OPERATORS:
    _LIBRARY.define(_operator.schema)
    _LIBRARY.impl(_operator.name, _operator.on_cpu, "CPU")
    _LIBRARY.impl(_operator.name, on_cuda(_operator.name, _operator.launch), "CUDA")
    _LIBRARY.impl(_operator.name, _operator.checked, "Meta")
