"""How one axis of a source tensor becomes an axis of a grown one: by copies, and shares of copies.

All factors are powers of two, so that a bf16 weight times a factor is a bf16 weight again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.core.errors import CheckpointError


@dataclass(frozen=True)
class Axis:
    """Element i of the grown axis is ``factor[i]`` times element ``index[i]`` of the source's.

    index int64[n], factor float32[n].
    """

    index: Tensor
    factor: Tensor

    def times(self, factor: float) -> Axis:
        return Axis(self.index, self.factor * factor)

    def blocks(self, count: int, size: int) -> Axis:
        """The same within each of ``count`` blocks of ``size`` source elements."""
        starts = torch.arange(count).mul(size).unsqueeze(1)
        return Axis((starts + self.index).flatten(), self.factor.repeat(count))

    def then(self, other: Axis, offset: int) -> Axis:
        """This axis followed by ``other``, whose source elements start at ``offset``."""
        index = torch.cat([self.index, other.index + offset])
        return Axis(index, torch.cat([self.factor, other.factor]))


def shares(count: int) -> list[float]:
    """``count`` powers of two that sum to 1 and are as equal as that allows.

    9 copies: seven of 1/8 and two of 1/16.
    """
    whole = 1 << (count.bit_length() - 1)
    halved = count - whole
    return [1 / whole] * (whole - halved) + [0.5 / whole] * (2 * halved)


def writing(size: int, copies: int) -> Axis:
    """Each of ``copies`` blocks holds the whole source axis: for what produces values."""
    return Axis(torch.arange(size).repeat(copies), torch.ones(size * copies))


def reading(size: int, copies: int, weights: Sequence[float] | None = None) -> Axis:
    """The same with a share per copy (``weights``, by default `shares`): for what sums over it."""
    share = torch.tensor(shares(copies) if weights is None else weights, dtype=torch.float32)
    return Axis(torch.arange(size).repeat(copies), share.repeat_interleave(size))


def expand(name: str, stored: Tensor, axes: Sequence[Axis | None]) -> Tensor:
    """The grown tensor of ``stored``, one axis each (None: as it is), in bf16, exact.

    Raises `CheckpointError` where bf16 cannot hold a value, one that is nearly 2^-126 already.
    """
    wide = stored.float()
    for dim, axis in enumerate(axes):
        if axis is not None:
            shape = [-1 if d == dim else 1 for d in range(wide.ndim)]
            wide = wide.index_select(dim, axis.index) * axis.factor.view(shape)
    narrow = wide.to(torch.bfloat16)
    if not torch.equal(narrow.float(), wide):
        raise CheckpointError(
            f"{name} holds values that bf16 cannot hold once they are divided among copies; "
            "repair the checkpoint"
        )
    return narrow
