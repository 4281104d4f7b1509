"""Launches as data: which kernel, how many programs, with what, without running anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from wmrt.core.errors import UnsupportedError
from wmrt.kernels.triton.aot_cases import AotCase

#: As triton writes types of tensors' elements.
TYPES: Mapping[torch.dtype, str] = {
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
}
_MULTIPLE = 16
#: Of a launch's keywords, what says how and is no argument of the kernel.
_HOW = ("num_warps", "launch_pdl", "enable_fp_fusion")


@dataclass(frozen=True)
class Launch:
    """One launch: ``arguments`` (tensors and numbers) and ``constants`` by the kernel's names,
    programs in x, y and z, warps of each, and whether it may begin before the one before it ends.
    """

    kernel: Any
    grid: tuple[int, int, int]
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    warps: int
    dependent: bool

    @property
    def name(self) -> str:
        return str(self.kernel.fn.__name__)

    def signature(self) -> dict[str, str]:
        """Types of the arguments, as `AotCase` has them."""
        return {name: _type(value) for name, value in self.arguments.items()}

    def aligned(self) -> tuple[str, ...]:
        """Arguments that are multiples of 16; of tensors, where their memory begins at one."""
        apart = {p.name for p in self.kernel.params if p.do_not_specialize}
        return tuple(n for n, v in self.arguments.items() if n not in apart and _multiple(v))

    def case(self, name: str) -> AotCase:
        """What compiles to the kernel of this launch."""
        return AotCase(
            name=name,
            kernel=self.kernel,
            signature=self.signature(),
            constants=self.constants,
            warps=self.warps,
            aligned=self.aligned(),
            options={"launch_pdl": True} if self.dependent else {},
        )


@contextmanager
def recorded(say: Callable[[Launch], None]) -> Iterator[None]:
    """Inside, launches of `triton.jit` functions run nothing and are told to ``say``; tensors may
    be on any device, meta among them.

    Not for several threads: it changes triton for the whole process while it lasts.
    """
    launch = JITFunction.run
    JITFunction.run = lambda function, *args, **named: say(_of(function, args, named))
    try:
        yield
    finally:
        JITFunction.run = launch


def _of(function: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Launch:
    given = {**dict(zip(function.arg_names, args, strict=False)), **named}
    constant = {p.name for p in function.params if p.is_constexpr}
    grid = tuple(named["grid"])
    known = {*function.arg_names, *_HOW, "grid", "warmup"}
    if given.keys() != known - {n for n in _HOW if n not in named}:
        raise UnsupportedError(
            f"{function.fn.__name__} is launched with {sorted(given.keys() ^ known)} more or less "
            "than a record has; add it to wmrt.kernels.triton.recorded"
        )
    return Launch(
        kernel=function,
        grid=(*grid, 1, 1)[:3],
        arguments={n: given[n] for n in function.arg_names if n not in constant},
        constants={n: given[n] for n in function.arg_names if n in constant},
        warps=named["num_warps"],
        dependent=bool(named.get("launch_pdl", False)),
    )


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"*{TYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


def _multiple(value: Any) -> bool:
    if isinstance(value, Tensor):
        at = value.storage_offset() * value.element_size()
        return (at if value.device.type == "meta" else value.data_ptr()) % _MULTIPLE == 0
    return isinstance(value, int) and value % _MULTIPLE == 0
