"""A session whose steps are one native call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.kernels.native.step import DECODE, HEAD, PREDICT, TRUNK
from wmrt.model.network import Network
from wmrt.runtime.array_session import ArraySession
from wmrt.runtime.native_group import NativeGroup, output_of
from wmrt.runtime.native_state import NativeExecutor, NativeState
from wmrt.runtime.output import Output
from wmrt.runtime.step import Rollout


class NativeSession(ArraySession):
    """`Session` over a `NativeState`. Its output tensors are views that the next step overwrites.

    Args:
        executor: of `network`, shared between sessions.
        options: of `Session`.
    """

    def __init__(self, network: Network, executor: NativeExecutor, **options: Any) -> None:
        self.executor = executor
        super().__init__(network, **options)

    def _allocate(self) -> None:
        self.state = NativeState(self.network, self.executor)
        arrays = self.state.arrays
        rows = {name: tensor.numpy() for name, tensor in arrays.items()}
        self._use(self.state, rows, output_of(arrays, slice(0, 1)))

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the static arrays and of the model's own copies of vectors."""
        return self.state.workspace_bytes + self.executor.model.own_bytes(self.network)

    def fresh(self) -> NativeSession:
        """Another session on the same network with the same settings."""
        return NativeSession(self.network, self.executor, **self.options)

    def group(self, robots: int) -> NativeGroup:
        """See `ArraySession.group`."""
        return NativeGroup(self.network, self.executor, robots)

    def step(
        self,
        codes: NDArray[np.int32],
        values: NDArray[np.float32],
        previous: Sequence[float] | NDArray[np.float32],
    ) -> Output:
        """One step from encoded state [F], [F] and the action sent before [A]."""
        out = self._views
        self._write(codes, values, previous)
        if self.choice.draws:
            self.state.run(TRUNK | HEAD)
            with torch.inference_mode():
                out.action.copy_(self.choice.action(out.logits, out.chunk))
            self.state.run(PREDICT | DECODE)
        else:
            self.state.run(TRUNK | HEAD | PREDICT | DECODE)
        self.output = out
        return out

    def observe(
        self, codes: NDArray[np.int32], values: NDArray[np.float32], previous: Sequence[float]
    ) -> None:
        """See `Session.observe`. Nothing of the heads is computed, so there is no output."""
        if self.choice.draws:  # the generator moves on with every step
            super().observe(codes, values, previous)
            return
        self._write(codes, values, previous)
        self.state.run(TRUNK)
        self.output = None

    def foresee(self, action: NDArray[np.float32]) -> NDArray[np.int64]:
        """See `Session.foresee`. Overwrites the action and the prediction of the last output, and
        leaves what a next step reads."""
        self.rows["action"][0] = action
        self.state.run(PREDICT | DECODE)
        return self.consequences()[0]

    def _imagine(self, plan: Tensor) -> Rollout:
        assert self.output is not None  # the caller checked
        count = len(plan)
        state = NativeState(self.network, self.executor, count)
        rings = self.ring.repeat(count).tensors()
        for name, tensor in state.ring.tensors().items():
            tensor.copy_(rings[name])
        arrays = state.arrays
        for name, now in (
            ("hidden", self.output.hidden),
            ("codes", self.codes),
            ("values", self.values),
        ):
            arrays[name].copy_(now.expand_as(arrays[name]))

        def predict(action: Tensor) -> None:
            arrays["action"].copy_(action)
            state.run(PREDICT | DECODE)

        rows = {name: tensor.numpy() for name, tensor in arrays.items()}
        return self._follow(plan, rows, predict, lambda: state.run(TRUNK))
