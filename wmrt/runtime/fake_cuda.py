"""Tensors that say they lie on a CUDA device and hold nothing, on a machine without one.

torch's fake tensors do so, but a build without CUDA refuses some of their methods before they reach
an operator (it has no guard for the device). Those are sent to the operator here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

_ATEN: Any = torch.ops.aten
_NO_GUARD = "not linked with support for cuda"
_NUMBERS = {"__int__": int, "__float__": float, "__bool__": bool, "__index__": int}
#: Methods whose operator is called otherwise.
_OTHERWISE = {"__invert__": "bitwise_not"}
_Module = TypeVar("_Module", bound=nn.Module)


@contextlib.contextmanager
def fake_cuda() -> Iterator[None]:
    """Inside, ``torch.empty(..., device="cuda")`` is a fake tensor, and nothing is computed."""
    with FakeTensorMode(allow_non_fake_inputs=True), _PastTheGuard():
        yield


def on_fake_cuda(module: _Module) -> _Module:
    """`module` in place with fake CUDA tensors for its parameters and buffers, whatever those were
    (of the meta device, say). Call it inside `fake_cuda`."""
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = fake_like(tensor)
    return module


def fake_like(tensor: Tensor) -> Any:
    """A fake CUDA tensor, contiguous, of this one's shape and type; a parameter for a parameter.
    Call it inside `fake_cuda`."""
    fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
    is_parameter = isinstance(tensor, nn.Parameter)
    return nn.Parameter(fake, requires_grad=False) if is_parameter else fake


def over_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value`, a record or container of tensors, with `change` of each in its place."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: over_tensors(getattr(value, f.name), change) for f in fields(value)}
        return replace(value, **parts)
    if isinstance(value, Mapping):
        return {name: over_tensors(part, change) for name, part in value.items()}
    if isinstance(value, list):
        return [over_tensors(part, change) for part in value]
    if isinstance(value, tuple):
        each = [over_tensors(part, change) for part in value]
        return type(value)(*each) if hasattr(value, "_fields") else tuple(each)
    return value


class _PastTheGuard(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        try:
            return func(*args, **named)
        except RuntimeError as error:
            if _NO_GUARD not in str(error):
                raise
        name = getattr(func, "__name__", "")
        if name == "__getitem__":
            return _get(*args)
        if name == "__setitem__":
            return _set(*args)
        if name in _NUMBERS:
            return _NUMBERS[name](args[0].item())
        return getattr(_ATEN, _OTHERWISE.get(name, name))(*args, **named)


def _viewed(tensor: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """What of ``tensor[index]`` is a view, and the tensors that gather from it, by dimension."""
    gathered: list[Tensor | None] = []
    at = 0
    for part in _expanded(tensor.dim(), index):
        if isinstance(part, Tensor):
            gathered.append(part)
            at += _dimensions(part)
        elif part is None or isinstance(part, slice):
            if part is None:
                tensor = _ATEN.unsqueeze.default(tensor, at)
            else:
                tensor = _ATEN.slice.Tensor(tensor, at, part.start, part.stop, part.step or 1)
            gathered.append(None)
            at += 1
        else:
            tensor = _ATEN.select.int(tensor, at, int(part))
    return tensor, gathered


def _expanded(dim: int, index: Any) -> list[Any]:
    """The parts of an index, an ellipsis as the slices that it stands for."""
    parts = list(index) if isinstance(index, tuple) else [index]
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), None)
    if at is None:
        return parts
    rest = dim - sum(_dimensions(part) for part in parts)
    return [*parts[:at], *[slice(None)] * rest, *parts[at + 1 :]]


def _dimensions(part: Any) -> int:
    """Dimensions of a tensor that a part of an index takes."""
    if part is None or part is Ellipsis:
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1


def _get(tensor: Tensor, index: Any) -> Any:
    view, gathered = _viewed(tensor, index)
    if any(part is not None for part in gathered):
        return _ATEN.index.Tensor(view, gathered)
    return view


def _set(tensor: Tensor, index: Any, value: Any) -> None:
    view, gathered = _viewed(tensor, index)
    if not isinstance(value, Tensor):
        value = _ATEN.full.default([], value, dtype=tensor.dtype, device=tensor.device)
    if any(part is not None for part in gathered):
        _ATEN.index_put_.default(view, gathered, value)
    else:
        _ATEN.copy_.default(view, value)
