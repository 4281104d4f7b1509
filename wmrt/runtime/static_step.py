"""A whole step on static buffers, operator by operator: what a CUDA Graph can capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Protocol

import torch
from torch import Tensor

from wmrt.model.heads import Prediction
from wmrt.model.network import Network


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
    """`Network.step` with its heads, as `Session.step` takes it, for ``batch`` robots.

    Torch's operators still allocate inside; a capture gives that memory a pool of its own.
    """

    def __init__(self, network: Network, batch: int = 1) -> None:
        self.network = network
        device, columns = network.increments.device, len(network.schema.columns)
        self.ring = network.new_ring(batch)
        self.inputs: Mapping[str, Tensor] = {
            "codes": torch.zeros(batch, columns, dtype=torch.int64, device=device),
            "values": torch.zeros(batch, columns, device=device),
            "previous": torch.zeros(batch, len(network.actions), device=device),
        }
        width, (steps, dims, bins) = network.config.d_model, network.action_head.shape
        self.outputs: dict[str, Tensor] = {
            "hidden": torch.zeros(batch, width, device=device),
            "logits": torch.zeros(batch, steps, dims, bins, device=device),
            "chunk": torch.zeros(batch, steps, dims, device=device),
            **self._predicted(batch, device),
        }

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        ring = {f"ring.{name}": tensor for name, tensor in self.ring.tensors().items()}
        return {**self.inputs, **ring, **self.outputs}

    def run(self) -> None:
        """One step; see `CapturableStep`."""
        given, network = self.inputs, self.network
        hidden = network.step(given["codes"], given["values"], given["previous"], self.ring)
        logits = network.action_head(hidden)
        chunk = network.action_head.decode(logits)
        predicted = network.predict(hidden, chunk[:, 0])
        found = {"hidden": hidden, "logits": logits, "chunk": chunk, **vars(predicted)}
        for name, tensor in found.items():
            self.outputs[name].copy_(tensor)

    def _predicted(self, batch: int, device: torch.device) -> dict[str, Tensor]:
        head = self.network.dynamics
        shapes = {
            "change": (batch, head.numeric, head.state_bins),
            "missing": (batch, head.numeric),
            "category": (batch, sum(head.category_sizes)),
            "reward": (batch, head.reward_bins),
            "proceed": (batch,),
        }
        return {f.name: torch.zeros(shapes[f.name], device=device) for f in fields(Prediction)}
