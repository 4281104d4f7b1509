"""Weights for the tests of layouts, and comparison byte by byte."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from wmrt.quant import QuantizedTensor, quantize
from wmrt.quant.formats import FORMATS
from wmrt.quant.layouts import LAYOUTS

Shape = tuple[int, int]
FOUR_BITS = tuple(name for name, spec in FORMATS.items() if spec.bits == 4)
TAKEN = [(layout, name) for layout in LAYOUTS for name in FOUR_BITS
         if layout != "cublas_128x4" or name in ("nvfp4", "mxfp4")]  # fmt: skip


def weight(seed: int, shape: Shape, format: str) -> QuantizedTensor:
    rng = np.random.default_rng(seed)
    w = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
    w[rng.integers(shape[0]), rng.integers(shape[1])] = 0.0
    return quantize(w, format)


def raw(tensor: Tensor) -> np.ndarray:
    """Every byte of a tensor, in order."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy()


def same(a: QuantizedTensor, b: QuantizedTensor) -> bool:
    mine, theirs = a.tensors(), b.tensors()
    return (a.format, a.shape) == (b.format, b.shape) and all(
        np.array_equal(raw(mine[name]), raw(theirs[name])) for name in mine | theirs
    )
