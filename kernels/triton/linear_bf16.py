"""The linear operator of implementation ``triton`` for bfloat16 weights: `dense`, without bias."""

from __future__ import annotations

import torch
from torch import Tensor

from wmrt.kernels import reference
from wmrt.kernels.registry import register
from wmrt.kernels.triton import ops_heads as _dense  # noqa: F401, registers the operator
from wmrt.kernels.triton.checks_heads import ROBOTS
from wmrt.kernels.triton.linear import require_on_cuda


@register("bf16", "bf16", "triton")
def linear_bf16(x: Tensor, weight: Tensor) -> Tensor:
    """float[..., K] rounded to bfloat16, times bfloat16 [N, K] -> float32[..., N], on CUDA."""
    flat = reference.checked(x, weight.shape[1]).float()
    require_on_cuda(flat, weight)
    out = flat.new_empty(len(flat), weight.shape[0])
    for some, to in zip(torch.split(flat, ROBOTS), torch.split(out, ROBOTS), strict=True):
        torch.ops.wmrt.dense.default(some, None, 0.0, weight, None, "none", to)
    return out.view(*x.shape[:-1], weight.shape[0])
