"""A session whose steps are one native call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.kernels.native.step import DECODE, HEAD, PREDICT, ROBOTS, TRUNK
from wmrt.model.heads import Prediction
from wmrt.model.network import Network
from wmrt.model.schema import UNKNOWN
from wmrt.runtime.native_state import NativeExecutor, NativeState
from wmrt.runtime.session import Choice, Output, Session
from wmrt.runtime.step import Rollout


class NativeSession(Session):
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
        self.ring = self.state.ring
        arrays = self.state.arrays
        self.codes, self.values = arrays["codes"], arrays["values"]
        self.previous = arrays["previous"]
        self._rows = {name: tensor.numpy() for name, tensor in arrays.items()}
        self._views = output_of(arrays, slice(0, 1))
        self._numbers = self.network.numeric_index.numpy()
        self._others = other_columns(self.network)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the static arrays and of the model's own copies of vectors."""
        return self.state.workspace_bytes + self.executor.model.own_bytes(self.network)

    def fresh(self) -> NativeSession:
        """Another session on the same network with the same settings."""
        return NativeSession(self.network, self.executor, **self.options)

    def fresh_choice(self, seed: int) -> Choice:
        """How another robot with these settings picks its action."""
        return Choice(self.network.action_head.centers, **{**self.options, "seed": seed})

    def step(
        self,
        codes: NDArray[np.int32],
        values: NDArray[np.float32],
        previous: Sequence[float] | NDArray[np.float32],
    ) -> Output:
        """One step from encoded state [F], [F] and the action sent before [A]."""
        rows, out = self._rows, self._views
        rows["codes"][0], rows["values"][0] = codes, values
        rows["previous"][0] = previous
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
        rows = self._rows
        rows["codes"][0], rows["values"][0] = codes, values
        rows["previous"][0] = previous
        self.state.run(TRUNK)
        self.output = None

    def consequences(self) -> tuple[NDArray[np.int64], float, float]:
        """Of the last step: the next state's integers [F], reward, probability to continue."""
        rows = self._rows
        q = next_integers(self.network, rows, self._numbers, self._others)[0]
        return q, float(rows["expected"][0]), float(rows["continues"][0])

    def foresee(self, action: NDArray[np.float32]) -> NDArray[np.int64]:
        """See `Session.foresee`. Overwrites the action and the prediction of the last output, and
        leaves what a next step reads."""
        self._rows["action"][0] = action
        self.state.run(PREDICT | DECODE)
        return self.consequences()[0]

    def imagine(self, plan: Tensor) -> Rollout:
        """See `Session.imagine`; 16 sequences share each read of the weights."""
        parts = [self._imagine(some) for some in torch.split(plan, ROBOTS)]
        return Rollout(
            np.concatenate([part.q for part in parts]),
            np.concatenate([part.reward for part in parts]),
            np.concatenate([part.proceed for part in parts]),
        )

    def _imagine(self, plan: Tensor) -> Rollout:
        assert self.output is not None  # the caller checked
        count, steps = plan.shape[:2]
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
        rows = {name: tensor.numpy() for name, tensor in arrays.items()}
        states, rewards, proceeds = [], [], []
        for t in range(steps):
            arrays["action"].copy_(plan[:, t])
            state.run(PREDICT | DECODE)
            q = next_integers(self.network, rows, self._numbers, self._others)
            states.append(q)
            rewards.append(rows["expected"].copy())
            proceeds.append(rows["continues"].copy())
            if t + 1 < steps:
                rows["codes"][:], rows["values"][:] = self.network.schema.encode_q(q)
                rows["previous"][:] = rows["action"]
                state.run(TRUNK)
        return Rollout(np.stack(states, 1), np.stack(rewards, 1), np.stack(proceeds, 1))


def output_of(arrays: dict[str, Tensor], robots: slice) -> Output:
    """Views of the rows of some robots."""
    part = {name: tensor[robots] for name, tensor in arrays.items()}
    names = ("change", "missing", "category", "reward", "proceed")
    prediction = Prediction(*(part[name] for name in names))
    return Output(part["hidden"], part["logits"], part["chunk"], part["action"], prediction)


def other_columns(network: Network) -> NDArray[np.int64]:
    """Columns that hold no number."""
    kinds = [column.kind for column in network.schema.columns]
    return np.array([i for i, kind in enumerate(kinds) if kind != "numeric"], np.int64)


def next_integers(
    network: Network,
    rows: dict[str, NDArray[Any]],
    numbers: NDArray[np.int64],
    others: NDArray[np.int64],
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
