"""What the native step keeps per group of robots: their ring, the static arrays, the workspace."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.kernels.native import step as abi
from wmrt.kernels.native.library import Isa, Pool, check
from wmrt.model.network import Network, Ring
from wmrt.runtime.native_model import NativeModel

_ALIGNED = 64
_INTEGERS = ("codes", "category_code")


@dataclass(frozen=True)
class NativeExecutor:
    """A model's weights and the threads that step it; shared by all its robots."""

    model: NativeModel
    isa: Isa
    threads: int
    pool: Pool | None


def state_bytes(executor: NativeExecutor, robots: int = 1) -> int:
    """Bytes of the block in a `NativeState`; `UnsupportedError` for a network it does not take."""
    model = ctypes.byref(executor.model.struct)
    size: int = abi.step_library().wmrt_step_bytes(model, robots, executor.threads)
    if not size:
        raise UnsupportedError(
            "the native step does not take a network of these sizes; use executor=eager"
        )
    return size


class NativeState:
    """Memory of up to 16 robots and the arrays of one step of theirs, allocated once.

    Attributes:
        ring: plain tensors, which the native step writes in place.
        arrays: views of the static arrays, one row per robot that steps, by their names in step.h.
    """

    def __init__(self, network: Network, executor: NativeExecutor, robots: int = 1) -> None:
        if not 1 <= robots <= abi.ROBOTS:
            raise UsageError(f"robots={robots}: 1 to {abi.ROBOTS} share one step")
        self._library = abi.step_library()
        self._executor = executor  # keeps the weights and the threads
        self.model, self.isa = executor.model, executor.isa
        self.robots = robots
        self.listener: Callable[[], None] | None = None  # called after every run
        self.ring: Ring = network.new_ring(robots)
        self.calls = torch.zeros(len(executor.model.names), dtype=torch.int64)
        own = {name: tensor.data_ptr() for name, tensor in self.ring.tensors().items()}
        self._struct = abi.State(
            model=ctypes.pointer(executor.model.struct),
            pool=None if executor.pool is None else executor.pool.handle,
            ring=abi.RingAddresses(**own),
            isa=executor.isa.number,
            threads=executor.threads,
            capacity=robots,
            calls=self.calls.data_ptr(),
        )
        self._block = self._allocate()
        self.arrays = self._views(network)
        self._pointer = ctypes.byref(self._struct)
        self.choose(range(robots))

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the static arrays and everything a step writes besides the ring."""
        return self._block.numel()

    def choose(self, robots: Sequence[int]) -> None:
        """Which robots step: row b of the arrays is robot ``robots[b]``."""
        self._struct.batch = len(robots)
        self._struct.robot[: len(robots)] = list(robots)

    def run(self, stages: int) -> None:
        """Run `stages` (TRUNK, HEAD, PREDICT, DECODE of `wmrt.kernels.native.step`)."""
        if self._executor.pool is not None:
            self._struct.pool = self._executor.pool.handle  # refuses after a fork of the process
        check(self._library.wmrt_step_run(self._pointer, stages), "native step")
        if self.listener is not None:
            self.listener()

    def look(
        self,
        *,
        inputs: Sequence[Tensor | None] | None = None,
        outputs: Sequence[Tensor | None] | None = None,
        trace: Tensor | None = None,
        residual_scale: Tensor | None = None,
    ) -> None:
        """Have further steps copy what goes in and out of each matrix, float32[B, K] and
        float32[B, N] in the order of `NativeModel.names`, and x after each layer, float32[layers +
        1, B, d]; or scale what each layer's attention and MLP add, float32[layers, 2]. What is left
        out stops."""
        self._looking = (inputs, outputs, trace, residual_scale)  # keeps them
        self._struct.inputs, self._struct.outputs = _addresses(inputs), _addresses(outputs)
        self._struct.trace = None if trace is None else trace.data_ptr()
        scale = residual_scale
        self._struct.residual_scale = None if scale is None else scale.data_ptr()

    def _allocate(self) -> Tensor:
        size = state_bytes(self._executor, self.robots)
        block = torch.zeros(size + _ALIGNED, dtype=torch.uint8)
        start = -block.data_ptr() % _ALIGNED
        result = self._library.wmrt_step_init(ctypes.byref(self._struct), block.data_ptr() + start)
        check(result, "native step: the state")
        return block

    def _views(self, network: Network) -> dict[str, Tensor]:
        views = {}
        for name, shape in _shapes(network).items():
            dtype = torch.int64 if name in _INTEGERS else torch.float32
            whole = (self.robots, *shape)
            size = torch.Size(whole).numel() * dtype.itemsize
            start = (getattr(self._struct, name) or 0) - self._block.data_ptr()
            view = self._block[start : start + size] if size else self._block[:0]
            views[name] = view.view(dtype).view(whole)
        return views


def _shapes(network: Network) -> dict[str, tuple[int, ...]]:
    """Of the static arrays, without the robots."""
    config, dynamics, actions = network.config, network.dynamics, len(network.actions)
    columns, numbers = len(network.schema.columns), dynamics.numeric
    return {
        "codes": (columns,),
        "values": (columns,),
        "previous": (actions,),
        "hidden": (config.d_model,),
        "logits": (config.chunk, actions, config.action_bins),
        "chunk": (config.chunk, actions),
        "action": (actions,),
        "change": (numbers, config.state_bins),
        "missing": (numbers,),
        "category": (sum(dynamics.category_sizes),),
        "reward": (config.reward_bins,),
        "proceed": (),
        "following": (numbers,),
        "category_code": (len(dynamics.category_sizes),),
        "expected": (),
        "continues": (),
    }


def _addresses(tensors: Sequence[Tensor | None] | None) -> Any:
    if tensors is None:
        return None
    found = [None if t is None else t.data_ptr() for t in tensors]
    return (ctypes.c_void_p * len(found))(*found)
