"""What triton's interpreter lacks: inline assembly and libdevice, emulated in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from triton.runtime import interpreter as upstream
from triton.runtime.interpreter import InterpreterBuilder as Builder
from triton.runtime.interpreter import TensorHandle as Handle

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.triton import bits, ptx

#: What fills the part of a register that hardware leaves undefined.
UNDEFINED = 0xA5


class InlineAsm(Builder):
    """``tl.inline_asm_elementwise`` is missing; so are, in 3.9, the instructions of dependent
    launches that were inline assembly before."""

    def create_inline_asm(
        self, asm: str, constraints: str, values: Any, types: Any, pure: bool, pack: int
    ) -> Any:
        shape = np.broadcast_shapes(*(value.data.shape for value in values)) or (1,)
        count = math.prod(shape)
        if count % pack:
            raise UsageError(f"inline assembly of {pack} elements at once on {count} of them")
        inputs = [r for value in values for r in _registers(value.data, shape, pack)]
        kinds = [(upstream._get_np_dtype(each.scalar), each.scalar) for each in types]
        outputs = iter(ptx.emulate(asm, constraints, inputs))
        results = []
        for kind, scalar in kinds:
            size = kind.itemsize
            taken = [next(outputs) for _ in range(_register_count(size, pack))]
            every = [np.broadcast_to(each, (count // pack,)) for each in taken]
            wide = np.stack(every, -1).astype(np.uint64 if size == 8 else np.uint32)
            if size < 4:
                wide = wide.view(f"u{size}")[:, :pack]
            data = np.ascontiguousarray(wide.reshape(shape)).view(kind)
            results.append(Handle(data, scalar))
        return _Results(results)

    def create_grid_dependency_wait(self) -> None:
        """A program run alone waits for nothing."""

    def create_grid_dependency_launch_dependents(self) -> None:
        """Nothing depends on a program run alone."""


class _Results(NamedTuple):
    handles: list[Any]

    def get_result(self, index: int) -> Any:
        return self.handles[index]


def _register_count(size: int, pack: int) -> int:
    """Registers of ``pack`` elements of ``size`` bytes: one each from 4 bytes on, else packed."""
    return pack if size >= 4 else -(-pack * size // 4)


def _registers(data: bits.Array, shape: tuple[int, ...], pack: int) -> list[bits.Array]:
    """The registers of one operand, each an array with an element per run of the assembly."""
    size = data.dtype.itemsize
    flat = np.ascontiguousarray(np.broadcast_to(data, shape)).reshape(-1, pack)
    flat = flat.view(np.dtype(f"u{size}"))
    if size < 4:
        padded = np.full((len(flat), _register_count(size, pack) * 4), UNDEFINED, np.uint8)
        padded[:, : pack * size] = flat.view(np.uint8)
        flat = padded.view(np.uint32)
    return list(flat.T)


class Libdevice(Builder):
    """Functions of libdevice are missing."""

    def create_extern_elementwise(
        self, library: str, path: str, symbol: str, arguments: Any, kind: Any, pure: bool
    ) -> Any:
        if symbol not in LIBDEVICE:
            raise UnsupportedError(
                f"libdevice's {symbol} is not emulated; there are: {', '.join(sorted(LIBDEVICE))}; "
                f"add it to LIBDEVICE of {__name__}"
            )
        scalar = kind.scalar
        values = LIBDEVICE[symbol](*(argument.data.astype(np.float64) for argument in arguments))
        return Handle(np.asarray(values).astype(upstream._get_np_dtype(scalar)), scalar)


def _half_away(x: Any) -> Any:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


#: Functions of float32 by their name in libdevice, computed in float64 and rounded.
LIBDEVICE: dict[str, Callable[..., Any]] = {
    "__nv_rintf": np.rint,
    "__nv_roundf": _half_away,
    "__nv_truncf": np.trunc,
    "__nv_tanhf": np.tanh,
    "__nv_log1pf": np.log1p,
    "__nv_expm1f": np.expm1,
    "__nv_erff": np.vectorize(math.erf, otypes=[np.float64]),
    "__nv_fmaf": bits.fused,
    "__nv_fmaf_rn": bits.fused,
}
