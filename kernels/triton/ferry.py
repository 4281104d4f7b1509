"""Tests of kernels that hand over CPU tensors, on a GPU.

``with ferried():`` stands where ``with repaired():`` does: every launch inside takes what its
tensors hold to the GPU, runs the compiled kernel there and brings it back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from wmrt.core.errors import UsageError


@contextmanager
def ferried(*, without: Collection[str] = ()) -> Iterator[None]:
    """Inside, launches of `triton.jit` functions take CPU tensors and run on the current GPU.

    Not for several threads: it changes triton for the whole process while it lasts. The signature
    is `repaired`'s.

    Raises:
        UsageError: repairs are named: a compiled kernel has none.
    """
    if without:
        raise UsageError(f"{sorted(without)}: repairs of the interpreter, which a GPU has not")
    launch = JITFunction.run

    def run(function: Any, *args: Any, **kwargs: Any) -> Any:
        return carry(lambda *a, **k: launch(function, *a, **k), args, kwargs, "cuda")

    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = launch


def carry(
    launch: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], device: str
) -> Any:
    """Call ``launch`` with copies on ``device`` for all tensors, then copy everything back.

    A storage travels whole and once, so that tensors which share memory do so there, and what a
    kernel writes outside of a tensor's own elements comes back too.
    """
    ashore: dict[int, tuple[Tensor, Tensor]] = {}

    def there(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.device.type != "cpu":
            return value
        if not value.untyped_storage().nbytes():
            return torch.empty_like(value, device=device)
        key = value.untyped_storage().data_ptr()
        if key not in ashore:
            whole = _bytes(value)
            ashore[key] = (whole, whole.to(device, copy=True))
        far = ashore[key][1].untyped_storage()
        empty = torch.empty(0, dtype=value.dtype, device=device)
        return empty.set_(far, value.storage_offset(), value.size(), value.stride())

    moved = {name: there(value) for name, value in kwargs.items()}
    result = launch(*[there(value) for value in args], **moved)
    for near, far in ashore.values():
        near.copy_(far)
    return result


def _bytes(tensor: Tensor) -> Tensor:
    """All of a tensor's storage as uint8."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
