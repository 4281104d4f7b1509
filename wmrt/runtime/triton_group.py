"""A group of robots that fused operators step on a GPU, some or all of them, as CUDA Graphs.

There is a graph for each of a few numbers of rows (`sizes`), since a row costs: 16 take 13.7
instructions a weight where one takes 3.1, and the long rows of a residual are read twice. So one
robot of sixteen is not to wait for sixteen rows. All graphs work on one memory of all robots, and a
step is told which of them it is for, so none is captured anew. A graph is only a list of launches:
a step allocates nothing.

Rows without a robot step spare robots behind the last one, never the same one twice: nothing that
any robot reads is written by two programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wmrt.core.errors import OutOfMemoryError, UnsupportedError, UsageError
from wmrt.kernels.state_arguments import MOST_ROBOTS
from wmrt.model.encoded import Encoded
from wmrt.model.network import Network, Ring
from wmrt.runtime.choice import Choice
from wmrt.runtime.cuda_graph import CudaGraphExecutor
from wmrt.runtime.graph_backend import GraphBackend
from wmrt.runtime.graph_life import first_line
from wmrt.runtime.graph_states import ResolvedGraph, drawn_graph
from wmrt.runtime.group_step import GroupReport, Rows, first, write
from wmrt.runtime.triton_model import TritonModel
from wmrt.runtime.triton_state import DECODE, HEAD, PREDICT, TRUNK, TritonState

#: Rows of a step, as far as a group has so many robots. Up to 3 are spare: 19 MB of ring in the
#: preset 1.3b, where 1, 2, 4, 8, 16 would have 7, and up to 7 rows too many.
ROWS = (1, 2, 4, 8, 12, 16)


def sizes(robots: int) -> tuple[int, ...]:
    """Numbers of rows that a group of so many robots has steps for; the last one is all."""
    return (*(rows for rows in ROWS if rows < robots), robots)


def spare(rows: Sequence[int]) -> int:
    """Most rows of a step that have no robot, where the next smaller step has too few."""
    return max(b - a - 1 for a, b in zip((0, *rows), rows, strict=False))


class TritonGroup:
    """`GroupStep` of fused operators.

    Args:
        model: of `network`, shared between groups and sessions.
        robots: 1 to 16.
        graph: on, auto or off, as for a session; of all steps.
        draws: actions are drawn, so that no step is one graph.
        backend: makes what captures in place of torch, from the buffers of a step.
        ops: see `TritonState`.

    Raises:
        UsageError: another number of robots, or an unknown mode.
        UnsupportedError: ``graph="on"``, and one of the steps cannot be captured; says which, why.
        DeviceError, OutOfMemoryError: the device failed, or had no memory left.
    """

    def __init__(
        self,
        network: Network,
        model: TritonModel,
        robots: int,
        *,
        graph: str = "auto",
        draws: bool = False,
        backend: Callable[[Mapping[str, Tensor]], GraphBackend] | None = None,
        ops: Any = None,
    ) -> None:
        if not 1 <= robots <= MOST_ROBOTS:
            raise UsageError(f"robots={robots}: 1 to {MOST_ROBOTS} share one step")
        self.network, self.robots, self.rows = network, robots, sizes(robots)
        drawn = drawn_graph(graph) if draws else None
        try:
            self.ring: Ring = network.new_ring(robots + spare(self.rows))
            self._states = {
                rows: TritonState(network, model, rows, ops, self.ring) for rows in self.rows
            }
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"no memory for a group of {robots} robots: {first_line(error)}; take fewer"
            ) from error
        self._steps = {
            rows: CudaGraphExecutor(
                state.run,
                state.buffers,
                graph=graph if drawn is None else "off",
                backend=None if backend is None else backend(state.buffers),
                proof=state.run_in_turn,
            )
            for rows, state in self._states.items()
        }
        found = {rows: self._prepared(rows) for rows in self.rows}
        self.resolved = found if drawn is None else dict.fromkeys(self.rows, drawn)
        self._ran = dict.fromkeys(self.rows, 0)

    def _prepared(self, rows: int) -> ResolvedGraph:
        try:
            return self._steps[rows].prepare()
        except UnsupportedError as error:
            raise UnsupportedError(f"a step of {rows} of {self.robots} robots: {error}") from error

    @torch.inference_mode()
    def step(
        self,
        robots: Sequence[int],
        read: Sequence[Encoded],
        before: Sequence[Sequence[float]],
        own: Sequence[Choice],
    ) -> Rows:
        """See `GroupStep`.

        Raises:
            UsageError: a static buffer was replaced; the message names it.
            DeviceError, OutOfMemoryError: the device failed now or before, in a step of any of the
                robots. There are no more steps after that.
        """
        count = len(robots)
        size = next(rows for rows in self.rows if rows >= count)
        state, step = self._states[size], self._step(size)
        rows = state.rows
        rows["robots"][:count] = robots
        rows["robots"][count:] = range(self.robots, self.robots + size - count)
        write(rows, read, before)
        if any(own[robot].draws for robot in robots):
            _drawn(state, [own[robot] for robot in robots])
        else:
            step.replay()
        step.wait()
        self._ran[size] += 1
        return first(rows, count)

    def _step(self, rows: int) -> CudaGraphExecutor:
        """The step of so many rows, or one that failed and says so: the memory is of all."""
        broken = (step for step in self._steps.values() if step.failure)
        return next(broken, self._steps[rows])

    def report(self, kernels: Mapping[str, int]) -> GroupReport:
        """See `GroupStep`."""
        refused = [one for one in self.resolved.values() if not one.used]
        told = refused[0] if refused else self.resolved[self.robots]
        workspace = sum(state.workspace_bytes for state in self._states.values())
        return GroupReport(
            executor="triton",
            robots=self.robots,
            rows=self.rows,
            graph=not refused,
            graph_reason=told.reason,
            kernels=dict(kernels),
            bytes={"ring": self.ring.nbytes, "workspace": workspace},
            ran=dict(self._ran),
        )


def _drawn(state: TritonState, own: Sequence[Choice]) -> None:
    """A step between whose halves each robot's action is drawn."""
    arrays = state.arrays
    state.run(TRUNK | HEAD)
    for b, choice in enumerate(own):
        row = slice(b, b + 1)
        action = choice.action(arrays["logits"][row], arrays["chunk"][row])
        arrays["action"][row].copy_(action)
    state.embed_action()
    state.run(PREDICT | DECODE)
