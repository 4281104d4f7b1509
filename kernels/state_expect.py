"""What `state_arguments` says of an argument that does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wmrt.core.errors import UsageError


class Expect:
    """Raises `UsageError` for a tensor that is not what an operator takes."""

    def __init__(self, op: str, device: torch.device) -> None:
        self._op, self._device = op, device

    def __call__(
        self, name: str, given: Tensor, types: tuple[torch.dtype, ...], shape: tuple[int, ...]
    ) -> None:
        fits = given.dtype in types and given.shape == shape and given.is_contiguous()
        if not fits or given.device != self._device:
            kinds = " or ".join(str(kind).removeprefix("torch.") for kind in types)
            loose = "" if given.is_contiguous() else ", not contiguous"
            raise UsageError(
                f"{name} is {given.dtype} {list(given.shape)} on {given.device}{loose}; {self._op} "
                f"takes contiguous {kinds} {list(shape)} on {self._device}"
            )

    def scratch(self, work: Tensor, floats: int) -> None:
        """`work` holds so many floats or more."""
        self("work", work, (torch.float32,), (max(work.numel(), floats),))


def count(kind: type[NamedTuple], given: Sequence[Any]) -> None:
    """`UsageError` unless there are as many as `kind` names."""
    if len(given) != len(kind._fields):
        raise UsageError(
            f"{len(given)} given of {kind.__name__}, which are {len(kind._fields)}: "
            f"{', '.join(kind._fields)}"
        )


def sized(**tensors: Tensor) -> None:
    """Sizes are read off these, before they are looked at one by one."""
    for name, tensor in tensors.items():
        if not tensor.dim():
            raise UsageError(f"{name} is a single number; it has to have axes")
