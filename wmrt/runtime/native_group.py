"""A group of robots that the native executor steps in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from wmrt.kernels.native.step import DECODE, HEAD, PREDICT, TRUNK
from wmrt.model.encoded import Encoded
from wmrt.model.heads import Prediction
from wmrt.model.network import Network, Ring
from wmrt.runtime.choice import Choice
from wmrt.runtime.group_step import GroupReport, Rows, first, write
from wmrt.runtime.native_state import NativeExecutor, NativeState
from wmrt.runtime.output import Output


class NativeGroup:
    """`GroupStep` over a `NativeState`, which steps any number of its robots."""

    def __init__(self, network: Network, executor: NativeExecutor, robots: int) -> None:
        self._state = NativeState(network, executor, robots)
        self._rows = {name: tensor.numpy() for name, tensor in self._state.arrays.items()}
        self._ran = dict.fromkeys(range(1, robots + 1), 0)

    @property
    def ring(self) -> Ring:
        """See `GroupStep`."""
        return self._state.ring

    def step(
        self,
        robots: Sequence[int],
        read: Sequence[Encoded],
        before: Sequence[Sequence[float]],
        own: Sequence[Choice],
    ) -> Rows:
        """See `GroupStep`."""
        state = self._state
        state.choose(robots)
        write(self._rows, read, before)
        if any(own[robot].draws for robot in robots):
            state.run(TRUNK | HEAD)
            with torch.inference_mode():
                for b, robot in enumerate(robots):
                    out = output_of(state.arrays, slice(b, b + 1))
                    out.action.copy_(own[robot].action(out.logits, out.chunk))
            state.run(PREDICT | DECODE)
        else:
            state.run(TRUNK | HEAD | PREDICT | DECODE)
        self._ran[len(robots)] += 1
        return first(self._rows, len(robots))

    def report(self, kernels: Mapping[str, int]) -> GroupReport:
        """See `GroupStep`."""
        state = self._state
        return GroupReport(
            executor="native",
            robots=state.robots,
            rows=tuple(self._ran),
            graph=False,
            graph_reason="a step is one native call",
            kernels=dict(kernels),
            bytes={"ring": state.ring.nbytes, "workspace": state.workspace_bytes},
            ran=dict(self._ran),
        )


def output_of(arrays: Mapping[str, torch.Tensor], robots: slice) -> Output:
    """Views of the rows of some robots."""
    part = {name: tensor[robots] for name, tensor in arrays.items()}
    names = ("change", "missing", "category", "reward", "proceed")
    prediction = Prediction(*(part[name] for name in names))
    return Output(part["hidden"], part["logits"], part["chunk"], part["action"], prediction)
