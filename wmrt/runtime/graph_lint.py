"""What keeps a step from being captured as a CUDA Graph, found without a GPU.

The step runs once on tensors that only say they are on a CUDA device (`fake_cuda`); every operator
it calls is looked at. What a capture refuses, repeats wrongly, or does anew in each step is a
fault, with the line of the step that does it.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import wmrt
from wmrt.runtime.fake_cuda import fake_cuda
from wmrt.runtime.graph_faults import (
    ALLOCATION,
    CHANCE,
    COPY,
    ERROR,
    HIDDEN,
    KINDS,
    SHAPE,
    SYNC,
    Fault,
    Report,
)

#: Operators that wait for a value, and what a linted step is given instead to go on with.
_SYNCHRONOUS: Mapping[str, Any] = {
    "aten::item": 1,
    "aten::_local_scalar_dense": 1,
    "aten::is_nonzero": True,
    "aten::equal": True,
}
#: Make a tensor without a launch. `lift_fresh` comes with tensors made of Python's numbers.
_NO_LAUNCH = {
    *("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"),
    *("aten::new_empty_strided", "aten::lift_fresh", "aten::resize_", "aten::set_"),
}
#: With a mask for an index they look for what is not zero, and wait for how many that are.
_INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
_MASKS = (torch.bool, torch.uint8)
_COPIES = {"aten::copy_", "aten::_to_copy", "aten::to"}
_HERE = {__file__, sys.modules[fake_cuda.__module__].__file__}
_TORCH = str(Path(torch.__file__).parent)
_ROOT = Path(wmrt.__file__).parents[1]


@dataclass
class Subject:
    """A step to look at: `run`, the named static `buffers` it may write, its generators."""

    run: Callable[[], object]
    buffers: Mapping[str, Tensor]
    generators: Sequence[torch.Generator] = ()


def lint(build: Callable[[], Subject]) -> Report:
    """Look at one step.

    Args:
        build: makes the subject, its weights and buffers with ``device="cuda"``; it is called where
            those are fake, and is not looked at itself.
    """
    with fake_cuda(), torch.no_grad():  # in inference mode operators come whole, not in parts
        subject = build()
        watch = _Watch(subject)
        try:
            with watch:
                subject.run()
        except _Stop:
            return watch.report(complete=False)
        except Exception as error:
            watch.error(error)
            return watch.report(complete=False)
        return watch.report(complete=True)


class _Stop(Exception):
    """The step cannot go on: what an operator gives depends on values."""


@dataclass
class _Tally:
    count: int = 0
    bytes: int = 0


@dataclass
class _Seen:
    faults: dict[tuple[str, str, str, str], _Tally] = field(default_factory=dict)
    operators: Counter[str] = field(default_factory=Counter)
    launches: Counter[str] = field(default_factory=Counter)


class _Watch(TorchDispatchMode):
    """Sees every operator of a subject's run."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._named = {_storage(t) for t in subject.buffers.values()}
        self._own: set[int] = set()
        self._kept: list[Tensor] = []  # a storage's number is free again when it dies
        self._generators = subject.generators
        self._seen = _Seen()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, named = func._schema.name, dict(kwargs or {})
        if name.startswith("prim::"):  # asks a tensor for its device, its layout
            return func(*args, **named)
        self._seen.operators[name] += 1
        if name in _SYNCHRONOUS:
            self.fault(SYNC, name, "waits for a value that Python reads")
            return _stand_in(name, args)
        given = _tensors((args, named))
        self._chance(func, name, (*args, *named.values()))
        self._writes(func, name, args, named)
        out = self._result(func, name, args, named)
        made = _tensors(out)
        self._copies(name, given, made, args, named)
        self._allocations(func, name, given, made)
        return out

    def error(self, error: Exception) -> None:
        """The step ended with it."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        places = [place for frame in reversed(frames) if (place := _place(frame))]
        said = (str(error).splitlines() or [""])[0][:120]
        self.fault(ERROR, "", f"{type(error).__name__}: {said}", where=places[0])

    def fault(
        self, kind: str, operator: str, detail: str, size: int = 0, where: str | None = None
    ) -> None:
        key = (kind, operator, _where() if where is None else where, detail)
        tally = self._seen.faults.setdefault(key, _Tally())
        tally.count += 1
        tally.bytes += size

    def report(self, complete: bool) -> Report:
        found = [Fault(*key, t.count, t.bytes) for key, t in self._seen.faults.items()]
        ordered = sorted(found, key=lambda fault: KINDS.index(fault.kind))
        seen = self._seen
        return Report(dict(seen.operators), dict(seen.launches), tuple(ordered), complete)

    def _result(self, func: Any, name: str, args: Any, named: Any) -> Any:
        try:
            if name in _INDEXING and any(t.dtype in _MASKS for t in _tensors(args[1])):
                raise _Stop
            return func(*args, **named)
        except (DataDependentOutputException, DynamicOutputShapeException, _Stop):
            told = "the shape of what it gives depends on values; the rest was not seen"
            self.fault(SHAPE, name, told)
            raise _Stop from None

    def _chance(self, func: Any, name: str, values: Iterable[Any]) -> None:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return
        used = [v for v in values if isinstance(v, torch.Generator)]
        if not used:
            self.fault(CHANCE, name, "draws from the generator of the whole process")
        elif not _identities(used) <= _identities(self._generators):
            self.fault(CHANCE, name, "its generator was not named: a replay repeats its numbers")

    def _writes(self, func: Any, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Tensors written that were there before the step and are no named buffers."""
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[index] if index < len(args) else named.get(argument.name)
            for tensor in _tensors(value):
                if _storage(tensor) not in self._named | self._own:
                    self.fault(HIDDEN, name, "writes what lives on and is no named buffer")

    def _copies(
        self, name: str, given: list[Tensor], made: list[Tensor], args: Any, named: Any
    ) -> None:
        copying = name in _COPIES
        # A number on the host may be an argument of a kernel; copied, it is a copy all the same.
        devices = {t.device.type for t in (*given, *made) if copying or t.dim()}
        if len(devices) < 2:
            return
        host = [t for t in (*given, *made) if t.device.type == "cpu"]
        later = bool(
            named.get("non_blocking", args[2] if name == "aten::copy_" and args[2:] else 0)
        )
        if later and all(_storage(t) in self._named for t in host):
            return  # between a named buffer, pinned, and the device: a node of the graph
        self.fault(COPY, name, f"between {' and '.join(sorted(devices))}")

    def _allocations(self, func: Any, name: str, given: list[Tensor], made: list[Tensor]) -> None:
        known = {_storage(t) for t in given}
        fresh = [t for t in made if _storage(t) not in known and t.device.type == "cuda"]
        writes = any(a.alias_info and a.alias_info.is_write for a in func._schema.arguments)
        if (fresh or writes) and name not in _NO_LAUNCH:
            self._seen.launches[name] += 1
        self._own |= {_storage(t) for t in made if _storage(t) not in known}
        self._kept += made
        if fresh or name == "aten::resize_":
            size = sum(t.numel() * t.element_size() for t in fresh)
            self.fault(ALLOCATION, name, "allocates in every step", size)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _identities(generators: Sequence[Any]) -> set[int]:
    """Of the generators themselves; every passing through an operator wraps them anew."""
    return {int(generator._cdata) for generator in generators}


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _stand_in(name: str, args: Sequence[Any]) -> Any:
    """A value of the right kind: 1 of the tensor's type, or true."""
    value = _SYNCHRONOUS[name]
    tensor = args[0]
    if name in ("aten::equal", "aten::is_nonzero") or tensor.dtype == torch.bool:
        return bool(value)
    return float(value) if tensor.dtype.is_floating_point else value


def _where() -> str:
    """File and line of the nearest frame that is neither torch's nor this lint's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        place = _place(frame)
        if place:
            return place
        frame = frame.f_back
    return ""


def _place(frame: FrameType) -> str:
    """File and line; empty for a frame of torch or of this lint."""
    file = frame.f_code.co_filename
    if file in _HERE or file.startswith((_TORCH, "<")):
        return ""
    path = Path(file)
    shown = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path.name
    return f"{shown}:{frame.f_lineno}"
