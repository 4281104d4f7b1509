"""The golden vectors: what other libraries write for the same weights (tests/golden)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

ARRAYS = dict(np.load(Path(__file__).parents[1] / "golden" / "lowbit_golden.npz"))
SETS = ("w", "wout", "edge", "tail")
# Who wrote which vectors.
VERSIONS = {
    "flashinfer": "FlashInfer 0.7.4 (vectors)", "te": "TransformerEngine 2.20.2 (vectors)",
    "torchao": "torchao 0.18.0 (vectors)", "modelopt": "ModelOpt 0.47.0 (vectors)",
    "compressed_tensors": "compressed-tensors 0.20.1 (vectors)", "ggml": "ggml 0.21.0 (vectors)",
    "numpy": "ml_dtypes 0.6.0 (vectors)", "ort": "ONNX Runtime 1.32.0 (vectors)",
    "gfloat": "gfloat 0.5.2 (vectors)", "_fi": "FlashInfer 0.7.4 (vectors)",
}  # fmt: skip


def weight(name: str) -> torch.Tensor:
    """An input set, float32[R, K]."""
    return torch.from_numpy(ARRAYS[f"x_{name}"])


def nibbles(packed: np.ndarray) -> np.ndarray:
    """uint8[R, C] -> uint8[R, 2C], even element in the low nibble."""
    return np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)


def differing(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Which E2M1 nibbles differ, +0 and -0 being one value: bool[R, K]."""
    a, b = nibbles(mine), nibbles(theirs)
    return (a != b) & ~((a & 7 == 0) & (b & 7 == 0))


def signs(mine: np.ndarray, theirs: np.ndarray) -> int:
    """How many E2M1 nibbles differ in the sign of a zero alone."""
    return int((nibbles(mine) != nibbles(theirs)).sum() - differing(mine, theirs).sum())
