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

SHAPES = [(512, 256), (256, 256), (1536, 256), (256, 768)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in operators()])
def test_linear(op: LinearOp, shape: tuple[int, int], seed: int, benchmark: Any) -> None:
    rng = np.random.default_rng(seed)
    weight = oracle.random_weight(op.format, shape, rng)
    if op.layout != "canonical":
        weight = oracle.laid_out(weight, op.layout)
    x = torch.from_numpy(rng.standard_normal((1, shape[1])).astype(np.float32))
    with torch.inference_mode():
        y = benchmark(op, x, weight)
    assert y.shape == (1, shape[0])
