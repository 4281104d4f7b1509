"""What `consequences` is given: names, shapes and types, checked."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wmrt.core.errors import UsageError


class Decode(NamedTuple):
    """Constants of `wmrt.model.heads.DynamicsHead`, for Fn numbers and Fc categories.

    numbers: int32[Fn], the columns that hold numbers.
    scales: float32[5, Fn]: delta_limit, delta_scale, fill, low, high.
    centers: float32[bins], of the two-hot changes.
    ends: int32[Fc], where the logits of each category end.
    reward_centers: float32[reward bins].
    """

    numbers: Tensor
    scales: Tensor
    centers: Tensor
    ends: Tensor
    reward_centers: Tensor


class Sizes(NamedTuple):
    """Of one call."""

    batch: int
    columns: int
    numbers: int
    bins: int
    rewards: int


def check_consequences(
    outputs: Tensor,
    codes: Tensor,
    values: Tensor,
    weights: Sequence[Tensor],
    category_sizes: Sequence[int],
    following: Tensor,
    missing: Tensor,
    category: Tensor,
    expected: Tensor,
    continues: Tensor,
) -> Sizes:
    """Sizes, if everything fits together; all on one device and contiguous.

    outputs float32[B, Fn bins + Fn + classes + reward bins + 1]: change, missing, category, reward,
    proceed. codes int32[B, F], values float32[B, F]: the present state. following, missing
    float32[B, Fn], category int64[B, Fc], expected, continues float32[B].

    Raises:
        UsageError: a tensor that is not that, or another number of weights.
    """
    listed = len(weights) == len(Decode._fields) and min(category_sizes, default=1) >= 1
    sized = all(w.dim() > 0 for w in weights)  # sizes are read off them
    if not listed or not sized or codes.dim() != 2:
        raise UsageError(
            f"consequences takes {len(Decode._fields)} weights ({', '.join(Decode._fields)}), "
            f"codes [B, F] and categories of 1 class or more; got weights "
            f"{[list(w.shape) for w in weights]}, codes {list(codes.shape)} and "
            f"{list(category_sizes)}"
        )
    w, (batch, columns) = Decode(*weights), codes.shape
    numbers = w.numbers.shape[0]
    s = Sizes(batch, columns, numbers, w.centers.shape[0], w.reward_centers.shape[0])
    width = numbers * (s.bins + 1) + sum(category_sizes) + s.rewards + 1
    expect = functools.partial(_expect, codes.device)
    expect("codes", codes, torch.int32, (batch, columns))
    expect("values", values, torch.float32, (batch, columns))
    expect("outputs", outputs, torch.float32, (batch, width))
    expect("following", following, torch.float32, (batch, numbers))
    expect("missing", missing, torch.float32, (batch, numbers))
    expect("category", category, torch.int64, (batch, len(category_sizes)))
    expect("expected", expected, torch.float32, (batch,))
    expect("continues", continues, torch.float32, (batch,))
    expect("numbers", w.numbers, torch.int32, (numbers,))
    expect("scales", w.scales, torch.float32, (5, numbers))
    expect("centers", w.centers, torch.float32, (s.bins,))
    expect("ends", w.ends, torch.int32, (len(category_sizes),))
    expect("reward_centers", w.reward_centers, torch.float32, (s.rewards,))
    return s


def _expect(
    device: torch.device, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    fits = tensor.dtype == dtype and tuple(tensor.shape) == shape and tensor.is_contiguous()
    if not fits or tensor.device != device:
        raise UsageError(
            f"{name} is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; consequences takes "
            f"a contiguous {dtype} {list(shape)} on {device}"
        )
