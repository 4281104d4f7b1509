"""Speed of every linear operator at the small model's shapes, batch 1.

Run it: ``pytest tests/kernels/test_linear_speed.py --benchmark-enable``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels import oracle
from wmrt.kernels import LinearOp, operators

OPS = [op for op in operators() if op.implementation != "triton" or torch.cuda.is_available()]
SHAPES = [(512, 256), (256, 256), (1536, 256), (256, 768)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in OPS])
def test_linear(op: LinearOp, shape: tuple[int, int], seed: int, benchmark: Any) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(op.format, shape, rng)
    x = torch.from_numpy(rng.standard_normal((1, shape[1])).astype(np.float32))
    if op.layout != "canonical":
        weight = oracle.laid_out(weight, op.layout)
    if op.implementation == "triton":
        x, weight = oracle.on_cuda(x, weight)
    with torch.inference_mode():
        y = benchmark(_finished, op, x, weight)
    assert y.shape == (1, shape[0])


def _finished(op: LinearOp, x: torch.Tensor, weight: Any) -> torch.Tensor:
    """The result, there: a launch on a GPU returns before it."""
    y = op(x, weight)
    if y.is_cuda:
        torch.cuda.synchronize()
    return y
