"""The named tensors that a captured step reads and writes: at fixed addresses, for ever."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.core.errors import UsageError


class Attributes(Mapping[str, Tensor]):
    """The attributes ``names`` of ``owner`` as a mapping that is looked up anew each time, so that
    a replaced one is seen."""

    def __init__(self, owner: object, names: Sequence[str]) -> None:
        self._owner, self._names = owner, tuple(names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = getattr(self._owner, name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class _Fixed:
    name: str
    tensor: Tensor
    address: int
    shape: torch.Size
    strides: tuple[int, ...]
    bytes: int


class StaticBuffers:
    """Remembers where the tensors of a mapping lie.

    Args:
        tensors: by name; the mapping is kept and asked again at every `check`.

    Raises:
        UsageError: it is empty, or a tensor has no memory of its own to lie in.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            raise UsageError("a captured step needs static buffers, got none")
        self._tensors = tensors
        self._fixed = [
            _Fixed(n, t, t.data_ptr(), t.shape, t.stride(), t.untyped_storage().size())
            for n, t in tensors.items()
        ]
        for fixed in self._fixed:
            if not fixed.address and fixed.tensor.numel():
                raise UsageError(
                    f"static buffer {fixed.name} on {fixed.tensor.device} lies nowhere"
                )

    @property
    def tensors(self) -> list[Tensor]:
        return [fixed.tensor for fixed in self._fixed]

    def check(self) -> None:
        """Raise `UsageError` if one was replaced, or changed in place to another place, shape,
        strides or size of its memory. 1 us a buffer: no tensor is read."""
        tensors = self._tensors
        for fixed in self._fixed:
            try:
                now = tensors[fixed.name]
                if _lies(now, fixed) and (now is fixed.tensor or _alike(now, fixed.tensor)):
                    continue
            except (KeyError, AttributeError):
                raise UsageError(_message(fixed, "is gone")) from None
            raise UsageError(_message(fixed, f"was replaced by {_described(now)}"))

    def copies(self) -> dict[str, Tensor]:
        """What they hold now."""
        return {fixed.name: fixed.tensor.clone() for fixed in self._fixed}

    def restore(self, copies: Mapping[str, Tensor]) -> None:
        """Write `copies` back, in place."""
        for fixed in self._fixed:
            fixed.tensor.copy_(copies[fixed.name])

    def different(self, copies: Mapping[str, Tensor]) -> list[str]:
        """Names of those that differ from `copies` in any bit. Waits for the device."""
        return [f.name for f in self._fixed if not _same_bits(f.tensor, copies[f.name])]


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Also where both are NaN, and 0 is not -0."""
    raw = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    return torch.equal(raw[0], raw[1])


def _lies(now: Tensor, fixed: _Fixed) -> bool:
    """Whether it is where it was, as it was."""
    return (
        now.data_ptr() == fixed.address
        and now.shape == fixed.shape
        and now.stride() == fixed.strides
        and now.untyped_storage().size() == fixed.bytes
    )


def _alike(now: Tensor, before: Tensor) -> bool:
    """Whether another view of the same address is read in the same way."""
    return now.dtype == before.dtype and now.device == before.device


def _described(tensor: Tensor) -> str:
    strides = f"strides {list(tensor.stride())}, {tensor.untyped_storage().size()} bytes of memory"
    where = f"on {tensor.device} at {tensor.data_ptr():#x}"
    return f"{tensor.dtype} {list(tensor.shape)} {where}, {strides}"


def _message(fixed: _Fixed, what: str) -> str:
    return (
        f"static buffer {fixed.name} {what}; the step was captured on "
        f"{fixed.tensor.dtype} {list(fixed.shape)} on {fixed.tensor.device} at "
        f"{fixed.address:#x}, strides {list(fixed.strides)}, {fixed.bytes} bytes of memory, and "
        "reads that memory: write into it with .copy_(), put the tensor back, or capture the "
        "step anew, in another session"
    )
