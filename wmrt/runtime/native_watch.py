"""What the linear layers of a native step really do: their inputs and outputs, copied as it runs.

The step is one call, so no hook of torch sees its layers. It counts its own calls of each matrix
and, while someone looks, copies what goes in and what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from wmrt.kernels import linear as pick
from wmrt.kernels.native.library import ACTIVATIONS, FORMATS
from wmrt.kernels.native.step import kernel_isa
from wmrt.model.linear import Linear
from wmrt.runtime.native_model import NativeModel
from wmrt.runtime.native_state import NativeState

_FORMATS = {number: name for name, number in FORMATS.items()}
_ACTIVATIONS = {number: name for name, number in ACTIVATIONS.items()}


class Looking:
    """Copies of every trunk linear's input float32[B, K] and output float32[B, N] at the last step
    of a state, by module name, and how often each matrix ran since."""

    def __init__(self, state: NativeState) -> None:
        self._state, self._names = state, state.model.names
        self._before = state.calls.clone()
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        for name, matrix in zip(self._names, state.model.matrices, strict=True):
            self.inputs[name] = torch.zeros(state.robots, matrix.k)
            self.outputs[name] = torch.zeros(state.robots, matrix.n)

    def start(self) -> None:
        self._state.look(
            inputs=[self.inputs[name] for name in self._names],
            outputs=[self.outputs[name] for name in self._names],
        )

    def stop(self) -> None:
        self._state.look()

    def calls(self, name: str) -> int:
        """How often the matrix ran since this object was made."""
        index = self._names.index(name)
        return int(self._state.calls[index] - self._before[index])


def kernel_of(model: NativeModel, name: str, isa: int) -> tuple[str, str | None]:
    """Operator name of the kernel that the native step picks for a matrix, read off the structure
    that it is given, and the instruction set of that kernel."""
    matrix = model.matrices[model.names.index(name)]
    op = pick(_FORMATS[matrix.format], _ACTIVATIONS[matrix.activation], "native")
    return op.name, kernel_isa(isa, matrix.format, matrix.activation)


@contextmanager
def watch_native(
    state: NativeState, modules: dict[str, Linear], reference: Any
) -> Iterator[dict[str, dict[str, Any]]]:
    """`wmrt.runtime.probe.watch` for a native state; ``reference(module, x)`` is what each layer's
    output is compared with, at every step."""
    seen: dict[str, dict[str, Any]] = {}
    looking = Looking(state)
    for name, module in modules.items():
        _, isa = kernel_of(state.model, name, state.isa.number)
        held = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        seen[name] = {
            "calls": 0,
            "kernels": [],
            "deviation": 0.0,
            "isa": isa,
            "weight": ", ".join(str(t.dtype).removeprefix("torch.") for t in held),
            "input": "float32",
            "output": "float32",
        }

    def look() -> None:
        for name, record in seen.items():
            calls = looking.calls(name)
            if calls == record["calls"]:
                continue  # not in this stage
            record["calls"] = calls
            record["kernels"] = [kernel_of(state.model, name, state.isa.number)[0]]
            expected = reference(modules[name], looking.inputs[name])
            scale = float(expected.abs().max()) or 1.0
            deviation = float((looking.outputs[name] - expected).abs().max()) / scale
            record["deviation"] = max(record["deviation"], deviation)

    looking.start()
    state.listener = look
    try:
        yield seen
    finally:
        state.listener = None
        looking.stop()
