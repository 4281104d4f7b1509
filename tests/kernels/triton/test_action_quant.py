"""The encoder of action chunks in the repaired interpreter: byte for byte the model's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from wmrt.core.errors import UsageError
from wmrt.kernels.triton import action_quant as kernel
from wmrt.kernels.triton.interpreter import repaired
from wmrt.model import action_quant as reference

SHAPES = ((8, 2), (4, 1), (16, 7), (1, 1), (3, 5), (17, 16))


def packed(chunks: torch.Tensor) -> list[bytes]:
    with repaired():
        found = kernel.action_pack(chunks)
    return [bytes(row.numpy()) for row in found.view(-1, found.shape[-1])]


def test_constants_are_the_models() -> None:
    names = ("GROUP", "LEVELS", "GROUP_BYTES")
    assert [getattr(kernel, n) for n in names] == [getattr(reference, n) for n in names]


@pytest.mark.parametrize(("steps", "dims"), SHAPES)
def test_the_bytes_of_the_model(steps: int, dims: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    chunks = torch.rand(6, steps, dims, generator=generator) * 2 - 1
    chunks[1] = chunks[1].round(decimals=1)  # ties
    chunks[2] = 0.0
    chunks[3] *= 1e-7  # scales that float16 holds as subnormals or not at all
    chunks[4] *= 1e6
    codec = reference.ActionQuant(steps, dims)
    assert packed(chunks) == [codec.pack(chunk) for chunk in chunks]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite(value: float, seed: int) -> None:
    """Codes as the model's; a scale of NaN may be any NaN."""
    generator = torch.Generator().manual_seed(seed)
    chunk = torch.rand(16, 2, generator=generator) * 2 - 1
    chunk[3, 1] = value
    got = np.frombuffer(packed(chunk)[0], np.uint8).reshape(-1, kernel.GROUP_BYTES)
    codec = reference.ActionQuant(16, 2)
    want = np.frombuffer(codec.pack(chunk), np.uint8).reshape(-1, kernel.GROUP_BYTES)
    np.testing.assert_array_equal(got[:, :8], want[:, :8])
    scales = [part[:, 8:].copy().view(np.float16) for part in (got, want)]
    np.testing.assert_array_equal(*scales)


def test_no_chunk_and_many_dimensions() -> None:
    chunks = torch.linspace(-1, 1, 64).view(2, 2, 8, 2)
    with repaired():
        assert kernel.action_pack(chunks).shape == (2, 2, 10)
        assert kernel.action_pack(chunks[:0]).shape == (0, 2, 10)


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        (torch.zeros(8, 2, dtype=torch.float64), r"torch.float64 \[8, 2\], not contiguous float32"),
        (torch.zeros(16), "not contiguous float32"),
        (torch.zeros(2, 8).t(), "not contiguous"),
        (torch.zeros(0, 2), "a chunk of 0 x 2 values; 1 to 4096"),
        (torch.zeros(4097, 1), "a chunk of 4097 x 1 values"),
    ],
)
def test_arguments_are_checked(chunks: torch.Tensor, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        kernel.action_pack(chunks)
