"""Cosine and sine of exact phases, against float64 of the same phase without its whole quarters."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from wmrt.kernels.triton.interpreter import repaired
from wmrt.kernels.triton.turns import cos_sin

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def phases(turns: tl.tensor, cos: tl.tensor, sin: tl.tensor, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cosine, sine = cos_sin(tl.load(turns + at).to(tl.uint32))
    tl.store(cos + at, cosine)
    tl.store(sin + at, sine)


def computed(turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of uint32[n], n a multiple of 16384."""
    given = torch.from_numpy(turns.astype(np.int64)).to(DEVICE)
    cos, sin = (torch.empty(len(turns), device=DEVICE) for _ in range(2))
    with nullcontext() if DEVICE == "cuda" else repaired():
        phases[(len(turns) // 16384,)](given, cos, sin, BLOCK=16384)
    return cos.cpu().numpy(), sin.cpu().numpy()


def exact(turns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In float64, to its last bits also beside zeros: quarters are taken off as integers."""
    quarter = (turns.astype(np.int64) + 2**29) // 2**30
    angle = (turns.astype(np.int64) - quarter * 2**30) * (2 * np.pi / 2**32)
    cos, sin = np.cos(angle), np.sin(angle)
    pairs = np.array([[cos, sin], [-sin, cos], [-cos, -sin], [sin, -cos]])
    return tuple(pairs[quarter % 4, :, np.arange(len(turns))].T)  # type: ignore[return-value]


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.max(np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32))))


@pytest.mark.parametrize("kind", ["random", "edges", "small"])
def test_within_an_ulp_and_a_tenth(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    if kind == "random":
        turns = rng.integers(0, 2**32, 1 << 18, dtype=np.uint32)
    elif kind == "edges":  # around every eighth of a turn
        near = (np.arange(9)[:, None] * 2**29 + np.arange(-8192, 8192)[None, :]).ravel()
        turns = (near % 2**32).astype(np.uint32)
    else:
        turns = (2.0 ** rng.uniform(0, 32, 1 << 16)).astype(np.uint32)
    for got, want in zip(computed(turns), exact(turns), strict=True):
        assert ulps(got, want) < 1.1


def test_quarters_are_exact() -> None:
    turns = np.tile(np.arange(4, dtype=np.uint32) << 30, 4096)
    cos, sin = computed(turns)
    assert cos[:4].tolist() == [1, 0, -1, 0] and sin[:4].tolist() == [0, 1, 0, -1]
