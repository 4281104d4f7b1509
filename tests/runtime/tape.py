"""A stand-in for a device that captures, which keeps a graph's promises on the CPU.

A capture records the operators and the very tensors they read and write, and runs nothing; a replay
runs them again. So Python is frozen, addresses are fixed, and a value that Python reads is refused,
as on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wmrt.runtime.spin import SpinSync

REFUSED = "CUDA error: operation not permitted when stream is capturing"
FAULT = "CUDA error: an illegal memory access was encountered\nCompile with ... to debug"
#: Under inference mode ``item`` comes whole, else in its parts.
SYNCHRONOUS = (
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::equal",
    "aten::is_nonzero",
)


def tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Tape(TorchDispatchMode):
    """Records operators. A graph: what it recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.replays, self.freed, self.fault = 0, False, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in SYNCHRONOUS:
            raise RuntimeError(REFUSED)
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    @torch.inference_mode()
    def replay(self) -> None:
        self.replays += 1
        if self.fault:
            raise RuntimeError(self.fault)
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            shared = {storage(t) for t in tensors((args, kwargs))}
            for old, new in zip(tensors(out), tensors(again), strict=True):
                if storage(old) not in shared:  # by memory: ``to`` may be a view, and may be none
                    old.copy_(new)

    def reset(self) -> None:
        self.freed = True


class TapeBackend:
    """Args: buffers: what a capture must leave as it is. faults: what goes wrong, by the name of a
    method, ``replay`` and ``first replay`` included. spoil: done to the tape after a capture."""

    def __init__(
        self,
        buffers: Mapping[str, Tensor],
        faults: Mapping[str, str] | None = None,
        unavailable: str | None = None,
        spoil: Callable[[Tape], None] = lambda tape: None,
    ) -> None:
        self.buffers, self.faults = buffers, dict(faults or {})
        self.reason, self.spoil = unavailable, spoil
        self.log: list[str] = []
        self.tape: Tape | None = None

    def _note(self, what: str) -> None:
        self.log.append(what)
        if what in self.faults:
            raise RuntimeError(self.faults[what])

    def unavailable(self) -> str | None:
        return self.reason

    def spin(self) -> SpinSync:
        self._note("spin")
        return SpinSync(True, "as asked")

    @contextlib.contextmanager
    def side_stream(self) -> Iterator[None]:
        self._note("side stream")
        yield
        self._note("side stream ends")

    def capture(self, run: Callable[[], None], generators: Sequence[torch.Generator]) -> Tape:
        self._note("capture")
        before = {name: t.clone() for name, t in self.buffers.items()}
        states = [g.get_state() for g in generators]
        self.tape = Tape()
        try:
            with self.tape:
                run()
        finally:
            for name, t in self.buffers.items():
                t.copy_(before[name])
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
        if not self.tape.calls:
            raise RuntimeError("the CUDA Graph is empty")
        self.spoil(self.tape)
        self.tape.fault = self.faults.get("replay", "")
        return self.tape

    def synchronize(self) -> None:
        self._note("synchronize")

    def allocated(self) -> int | None:
        return None
