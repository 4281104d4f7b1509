"""A session whose steps are the fused operators on a GPU, as one CUDA Graph where asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.model.network import Network
from wmrt.runtime.array_session import ArraySession
from wmrt.runtime.cuda_graph import CudaGraphExecutor
from wmrt.runtime.graph_backend import GraphBackend
from wmrt.runtime.graph_states import ResolvedGraph, drawn_graph
from wmrt.runtime.output import Output
from wmrt.runtime.session import Session
from wmrt.runtime.step import Rollout
from wmrt.runtime.triton_group import TritonGroup
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_state import DECODE, HEAD, PREDICT, TRUNK, TritonState


class TritonSession(ArraySession):
    """`Session` over a `TritonState`. Its output tensors are views that the next step overwrites.

    Args:
        model: of `network`, shared between sessions.
        options: of `Session`.
    """

    def __init__(self, network: Network, model: TritonModel, **options: Any) -> None:
        self.model = model
        super().__init__(network, **options)

    def _allocate(self) -> None:
        self.state = TritonState(self.network, self.model)
        arrays, host = self.state.arrays, self.state.host
        told = (host["chunk"], host["action"], self.state.prediction)
        self._use(self.state, self.state.rows, Output(arrays["hidden"], arrays["logits"], *told))
        self._mode = "off"
        self._step = self._executor("off")

    def _executor(self, graph: str, backend: GraphBackend | None = None) -> CudaGraphExecutor:
        state = self.state
        return CudaGraphExecutor(
            state.run, state.buffers, graph=graph, backend=backend, proof=state.run_in_turn
        )

    def capture(self, graph: str, backend: GraphBackend | None = None) -> ResolvedGraph:
        """See `Session.capture`. The graph holds everything from the copy of the inputs to that of
        the results."""
        self._mode = graph
        if self.choice.draws:
            resolved = drawn_graph(graph)
            self._step = self._executor("off")
            self._step.prepare()
            return resolved
        self._step = self._executor(graph, backend)
        return self._step.prepare()

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the static arrays and of the model's own copies of small weights."""
        return self.state.workspace_bytes + self.model.own_bytes()

    def fresh(self) -> TritonSession:
        """Another session on the same network with the same settings."""
        other = TritonSession(self.network, self.model, **self.options)
        other.capture(self._mode)
        return other

    def group(self, robots: int) -> TritonGroup:
        """See `ArraySession.group`."""
        draws = self.choice.draws
        return TritonGroup(self.network, self.model, robots, graph=self._mode, draws=draws)

    @torch.inference_mode()
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
            drawn = self.choice.action(out.logits, self.state.arrays["chunk"])
            self.state.arrays["action"].copy_(drawn)
            self.state.embed_action()
            self.state.run(PREDICT | DECODE)
        else:
            self._step.replay()
        self._step.wait()
        self.output = out
        return out

    def _imagine(self, plan: Tensor) -> Rollout:
        assert self.output is not None  # the caller checked
        count = len(plan)
        state = TritonState(self.network, self.model, count)
        rings = self.ring.repeat(count).tensors()
        for name, tensor in state.ring.tensors().items():
            tensor.copy_(rings[name])
        state.arrays["hidden"].copy_(self.output.hidden.expand(count, -1))
        rows = state.rows
        rows["codes"][:], rows["values"][:] = self.codes.cpu().numpy(), self.values.cpu().numpy()

        def predict(action: Tensor) -> None:
            state.arrays["action"].copy_(action)
            state.embed_action()
            state.run(PREDICT | DECODE)
            self._step.wait()

        return self._follow(plan, rows, predict, lambda: state.run(TRUNK))

    @torch.inference_mode()
    def take(self, other: Session) -> None:
        """The last state and output of `other`, as copies."""
        assert isinstance(other, TritonSession)
        for name, array in self.state.arrays.items():
            array.copy_(other.state.arrays[name])
        for name, row in self.state.host.items():
            row.copy_(other.state.host[name])
        self.output = None if other.output is None else self._views
