"""What sessions share whose results lie in numpy rows: the native one, and the fused operators."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.kernels.state_arguments import MOST_ROBOTS
from wmrt.model.network import Network, Ring
from wmrt.model.schema import UNKNOWN
from wmrt.runtime.choice import Choice
from wmrt.runtime.group_step import GroupStep, Rows
from wmrt.runtime.output import Output
from wmrt.runtime.session import Session
from wmrt.runtime.step import Rollout


class ArrayState(Protocol):
    """Memory of a step whose inputs and results are static arrays, one row per robot."""

    ring: Ring
    arrays: dict[str, Tensor]


class ArraySession(Session, abc.ABC):
    """`Session` whose steps leave in `rows`, one per robot, what is read off the predictions."""

    rows: Rows

    def _use(self, state: ArrayState, rows: Rows, views: Output) -> None:
        """Take the memory of a state for one robot; to be called by `_allocate`.

        Args:
            rows: where inputs are written and results read. views: what a step gives.
        """
        arrays = state.arrays
        self.ring, self.rows, self._views = state.ring, rows, views
        self.codes, self.values = arrays["codes"], arrays["values"]
        self.previous = arrays["previous"]
        self._numbers = self.network.numeric_index.cpu().numpy()
        self._others = other_columns(self.network)

    def _write(
        self,
        codes: NDArray[np.int32],
        values: NDArray[np.float32],
        previous: Sequence[float] | NDArray[np.float32],
    ) -> None:
        """What a step begins with: its inputs."""
        rows = self.rows
        rows["codes"][0], rows["values"][0] = codes, values
        rows["previous"][0] = previous

    def consequences(self) -> tuple[NDArray[np.int64], float, float]:
        """Of the last step: the next state's integers [F], reward, probability to continue."""
        rows = self.rows
        q = next_integers(self.network, rows, self._numbers, self._others)[0]
        return q, float(rows["expected"][0]), float(rows["continues"][0])

    @abc.abstractmethod
    def group(self, robots: int) -> GroupStep:
        """Memory of 1 to 16 robots more and a step of theirs, with this session's settings.

        Raises `UnsupportedError` for ``graph="on"`` where that cannot be had, and what a device
        without memory raises.
        """

    def fresh_choice(self, seed: int) -> Choice:
        """How another robot with these settings picks its action."""
        return Choice(self.network.action_head.centers, **{**self.options, "seed": seed})

    @torch.inference_mode()
    def imagine(self, plan: Tensor) -> Rollout:
        """See `Session.imagine`; 16 sequences share each read of the weights."""
        parts = [self._imagine(some) for some in torch.split(plan, MOST_ROBOTS)]
        return Rollout(
            np.concatenate([part.q for part in parts]),
            np.concatenate([part.reward for part in parts]),
            np.concatenate([part.proceed for part in parts]),
        )

    @abc.abstractmethod
    def _imagine(self, plan: Tensor) -> Rollout:
        """`imagine` of up to 16 sequences, by `_follow` on a state of their own."""

    def _follow(
        self,
        plan: Tensor,
        rows: Rows,
        predict: Callable[[Tensor], None],
        advance: Callable[[], None],
    ) -> Rollout:
        """What follows plan float32[N, T, A] in `rows`: `predict` after an action [N, A], and
        `advance` to the state that is in the rows then."""
        states, rewards, proceeds = [], [], []
        for t in range(plan.shape[1]):
            predict(plan[:, t])
            q = next_integers(self.network, rows, self._numbers, self._others)
            states.append(q)
            rewards.append(rows["expected"].copy())
            proceeds.append(rows["continues"].copy())
            if t + 1 < plan.shape[1]:
                rows["codes"][:], rows["values"][:] = self.network.schema.encode_q(q)
                rows["previous"][:] = plan[:, t].numpy()
                advance()
        return Rollout(np.stack(states, 1), np.stack(rewards, 1), np.stack(proceeds, 1))


def other_columns(network: Network) -> NDArray[np.int64]:
    """Columns that hold no number."""
    kinds = [column.kind for column in network.schema.columns]
    return np.array([i for i, kind in enumerate(kinds) if kind != "numeric"], np.int64)


def next_integers(
    network: Network, rows: Rows, numbers: NDArray[np.int64], others: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Predicted integer state int64[B, F] from the decoded arrays; see `imagination.next_q`."""
    q = np.full(rows["codes"].shape, UNKNOWN, np.int64)
    if len(numbers):
        exact = network.schema.quantize_array(rows["following"])
        q[:, numbers] = np.where(rows["missing"] <= 0, exact, UNKNOWN)
    if len(others):
        category = rows["category_code"]
        q[:, others] = np.where(category > 0, category, UNKNOWN)
    return q
