"""A whole step on static buffers, operator by operator: what a CUDA Graph can capture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.model.heads import Prediction
from wmrt.model.network import Network
from wmrt.runtime.choice import Choice
from wmrt.runtime.output import Output


class CapturableStep(Protocol):
    """A step that works on named static buffers and on nothing else that changes."""

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """``codes`` int[B, F], ``values`` float32[B, F], ``previous`` float32[B, A]: write here."""

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """All of them: inputs, state, outputs."""

    def run(self) -> None:
        """One step of B robots: reads inputs and state, writes state and outputs."""


class StaticStep:
    """`Network.step` with its heads for ``batch`` robots, each with a row of every buffer.

    Torch's operators still allocate inside; a capture gives that memory a pool of its own.

    Args:
        choice: how the one robot picks its action; None: the first of each chunk.
    """

    def __init__(self, network: Network, batch: int = 1, choice: Choice | None = None) -> None:
        if choice is not None and batch != 1:
            raise UsageError(f"batch={batch}: robots that share a step take the chunk's first")
        self.network, self._choice = network, choice
        device, columns = network.increments.device, len(network.schema.columns)
        self.ring = network.new_ring(batch)
        self.inputs: Mapping[str, Tensor] = {
            "codes": torch.zeros(batch, columns, dtype=torch.int64, device=device),
            "values": torch.zeros(batch, columns, device=device),
            "previous": torch.zeros(batch, len(network.actions), device=device),
        }

    @cached_property
    def outputs(self) -> Output:
        """Where `run` writes; a step that only computes has none."""
        batch, device = len(self.inputs["codes"]), self.inputs["codes"].device
        width = self.network.config.d_model
        steps, dims, bins = self.network.action_head.shape
        return Output(
            hidden=torch.zeros(batch, width, device=device),
            logits=torch.zeros(batch, steps, dims, bins, device=device),
            chunk=torch.zeros(batch, steps, dims, device=device),
            action=torch.zeros(batch, dims, device=device),
            prediction=self._predicted(batch, device),
        )

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        ring = {f"ring.{name}": tensor for name, tensor in self.ring.tensors().items()}
        return {**self.inputs, **ring, **self.outputs.tensors()}

    def run(self) -> None:
        """One step; see `CapturableStep`."""
        self.outputs.copy_(self.compute())

    def compute(self) -> Output:
        """`run` with its results in tensors of their own."""
        given, network = self.inputs, self.network
        generator = None if self._choice is None else self._choice.generator
        hidden = network.step(
            given["codes"], given["values"], given["previous"], self.ring, generator
        )
        logits = network.action_head(hidden)
        chunk = network.action_head.decode(logits)
        action = chunk[:, 0] if self._choice is None else self._choice.action(logits, chunk)
        return Output(hidden, logits, chunk, action, network.predict(hidden, action))

    def _predicted(self, batch: int, device: torch.device) -> Prediction:
        head = self.network.dynamics
        shapes = {
            "change": (batch, head.numeric, head.state_bins),
            "missing": (batch, head.numeric),
            "category": (batch, sum(head.category_sizes)),
            "reward": (batch, head.reward_bins),
            "proceed": (batch,),
        }
        return Prediction(**{n: torch.zeros(s, device=device) for n, s in shapes.items()})
