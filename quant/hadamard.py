"""Hadamard rotations with random signs: they spread a row's outliers over all its elements.

Rounding to 4 bits is hurt by the largest element of each block. An orthogonal rotation of the space
a weight reads from keeps every product and makes its elements nearly Gaussian (QuIP#, Tseng et al.
2024, section 3; QuaRot, Ashkboos et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError


def largest_power_of_two(size: int) -> int:
    """The largest power of two that divides ``size``: the length of one Hadamard block."""
    if size < 1:
        raise QuantizationError(f"a rotation needs at least one dimension, got {size}")
    return size & -size


@dataclass(frozen=True, eq=False)
class Rotation:
    """The orthogonal matrix R = diag(signs) (I x H_p) / sqrt(p), p = `largest_power_of_two(n)`.

    * `signs`: float32[n] of +1 and -1
    * A size that is no power of two is rotated within blocks of p: 192 = 3 x 64, and a prime size
      only changes signs. Still orthogonal, but outliers spread over p dimensions and no further.

    H is Sylvester's matrix, applied by log2(p) additions and subtractions an element, so that R is
    orthogonal up to float32 rounding: at most log2(p) + 1 roundings.
    """

    signs: Tensor

    @property
    def block(self) -> int:
        """p, the dimensions that are mixed with each other."""
        return largest_power_of_two(len(self.signs))

    def apply(self, x: Tensor, dim: int = -1) -> Tensor:
        """x R along ``dim``, which has the rotation's size; a new tensor of x's dtype and shape."""
        return self._along(x, dim, lambda rows: _mix(rows * self.signs.to(x.dtype), self.block))

    def undo(self, x: Tensor, dim: int = -1) -> Tensor:
        """x R^T along ``dim``: the inverse of `apply`. H is symmetric."""
        return self._along(x, dim, lambda rows: _mix(rows, self.block) * self.signs.to(x.dtype))

    def _along(self, x: Tensor, dim: int, function: Callable[[Tensor], Tensor]) -> Tensor:
        if x.shape[dim] != len(self.signs):
            raise QuantizationError(
                f"a rotation of {len(self.signs)} dimensions, applied to axis {dim} of "
                f"{list(x.shape)}"
            )
        return function(x.movedim(dim, -1)).movedim(-1, dim).contiguous()


def random_rotation(size: int, seed: int) -> Rotation:
    """The rotation of ``size`` dimensions that ``seed`` names, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(2, (size,), generator=generator)
    return Rotation((1 - 2 * bits).to(torch.float32))


def _mix(x: Tensor, block: int) -> Tensor:
    """x (I x H_block) / sqrt(block) along the last axis by the fast Walsh-Hadamard transform."""
    shape, width = x.shape, 1
    while width < block:
        pairs = x.reshape(*shape[:-1], -1, 2, width)
        first, second = pairs.unbind(-2)
        x = torch.stack([first + second, first - second], dim=-2)
        width *= 2
    return x.reshape(shape) / math.sqrt(block)
