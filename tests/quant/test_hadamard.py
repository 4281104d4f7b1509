"""Rotations: orthogonal, the matrix they say they are, the same for a seed everywhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.hadamard import Rotation, largest_power_of_two, random_rotation

#: Half a unit in the last place of float32.
ROUND = 2.0**-24


def sylvester(size: int) -> Tensor:
    """By the definition: H[i, j] = (-1)^(number of common one bits of i and j)."""
    return torch.tensor(
        [[(-1.0) ** bin(i & j).count("1") for j in range(size)] for i in range(size)],
        dtype=torch.float64,
    )


def dense(rotation: Rotation) -> Tensor:
    block, size = rotation.block, len(rotation.signs)
    one = sylvester(block) / math.sqrt(block)
    whole = torch.block_diag(*[one] * (size // block))
    return rotation.signs.double().unsqueeze(1) * whole


@pytest.mark.parametrize("size", [1, 2, 64, 256, 96, 192, 7, 12])
def test_it_is_the_matrix_it_says(size: int, seed: int) -> None:
    rotation = random_rotation(size, seed)
    assert rotation.block == max(p for p in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size % p == 0)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 5, size, generator=generator)
    matrix = dense(rotation)
    # log2(p) sums and a division, each rounding once, of partial results no longer than the row
    limit = (math.log2(rotation.block) + 1) * ROUND * float(x.norm(dim=-1).max())
    assert float((rotation.apply(x) - x.double() @ matrix).abs().max()) <= limit
    assert float((rotation.undo(x) - x.double() @ matrix.T).abs().max()) <= limit
    assert float((rotation.undo(rotation.apply(x)) - x).abs().max()) <= 2 * limit
    assert torch.equal(rotation.apply(x, 2), rotation.apply(x))
    assert torch.equal(rotation.apply(x.movedim(2, 0), 0), rotation.apply(x).movedim(2, 0))


def test_float64_stays_float64(seed: int) -> None:
    rotation = random_rotation(64, seed)
    eye = torch.eye(64, dtype=torch.float64)
    product = rotation.apply(eye) @ rotation.apply(eye).T
    assert product.dtype == torch.float64
    assert float((product - eye).abs().max()) <= 64 * 2.0**-52


def test_an_outlier_is_spread(seed: int) -> None:
    x = torch.zeros(256)
    x[seed % 256] = 16.0
    assert torch.equal(random_rotation(256, seed).apply(x).abs(), torch.ones(256))


def test_a_seed_names_one_rotation(seed: int) -> None:
    first, again, other = (random_rotation(256, s).signs for s in (seed, seed, seed + 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert set(first.tolist()) == {1.0, -1.0}
    # Fixed for good: stored weights are in the basis that their seed names.
    assert random_rotation(8, 0).signs.tolist() == [1, -1, -1, 1, -1, -1, -1, -1]


def test_refusals() -> None:
    with pytest.raises(QuantizationError, match=r"rotation of 8 dimensions.*axis -1 of \[2, 4\]"):
        random_rotation(8, 0).apply(torch.zeros(2, 4))
    with pytest.raises(QuantizationError, match="at least one dimension"):
        largest_power_of_two(0)
