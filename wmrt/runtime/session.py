"""A session: one robot's ring of past states and the static buffers a step reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrt.core.errors import UnsupportedError, UsageError
from wmrt.model.heads import Prediction
from wmrt.model.network import Network, Ring

GRAPH_MODES = ("auto", "on", "off")


@dataclass(frozen=True)
class ResolvedGraph:
    """Whether a step is one captured CUDA Graph, and why or why not."""

    used: bool
    reason: str


def resolve_graph(requested: str, device: torch.device) -> ResolvedGraph:
    """Decide graph use; ``on`` where it cannot be had raises `UnsupportedError` with the reason."""
    if requested not in GRAPH_MODES:
        raise UsageError(f"graph {requested!r} is unknown; allowed: {', '.join(GRAPH_MODES)}")
    if device.type == "cuda":
        reason = "this version steps eagerly on CUDA; it has no captured executor"
    else:
        reason = f"a CUDA Graph needs a CUDA device, this one is {device}"
    if requested == "on":
        raise UnsupportedError(f"graph=on cannot be had: {reason}; use graph=auto or graph=off")
    return ResolvedGraph(False, "switched off" if requested == "off" else reason)


@dataclass
class Output:
    """Results of one step on the network's device, batch 1."""

    hidden: Tensor
    logits: Tensor
    chunk: Tensor
    action: Tensor
    prediction: Prediction


class Session:
    """Steps ``network`` for one robot. Every buffer is allocated here; a step copies into them.

    Args:
        network: in eval mode, packed or not; shared between sessions.
        seed: of a generator of its own (sampling, exploration, random selector).
        action_noise: standard deviation of exploration noise on the action, 0 for none.
        sample, temperature: sample the action bins instead of decoding the mode.
    """

    def __init__(
        self,
        network: Network,
        *,
        seed: int = 0,
        action_noise: float = 0.0,
        sample: bool = False,
        temperature: float = 1.0,
    ) -> None:
        if not temperature > 0:
            raise UsageError(f"temperature must be positive, got {temperature}")
        if temperature != 1.0 and not sample:
            raise UsageError("temperature applies only with sample=True")
        if not action_noise >= 0:
            raise UsageError(f"action_noise must not be negative, got {action_noise}")
        self.network, self.seed = network, seed
        self.action_noise, self.sample, self.temperature = action_noise, sample, temperature
        device = network.increments.device
        columns, actions = len(network.schema.columns), len(network.actions)
        with torch.inference_mode():
            self.ring: Ring = network.new_ring()
            self.codes = torch.zeros(1, columns, dtype=torch.int64, device=device)
            self.values = torch.zeros(1, columns, device=device)
            self.previous = torch.zeros(1, actions, device=device)
        self.generator = torch.Generator(device=device).manual_seed(seed)
        self.output: Output | None = None

    @torch.inference_mode()
    def reset(self) -> None:
        """Forget every past state; the generator starts again from the seed."""
        self.ring.reset()
        self.output = None
        self.generator.manual_seed(self.seed)

    @torch.inference_mode()
    def step(
        self,
        codes: NDArray[np.int32],
        values: NDArray[np.float32],
        previous: Sequence[float] | NDArray[np.float32],
    ) -> Output:
        """One step from encoded state [F], [F] and the action sent before [A]."""
        self.codes[0].copy_(torch.from_numpy(codes))
        self.values[0].copy_(torch.from_numpy(values))
        self.previous[0].copy_(torch.from_numpy(np.asarray(previous, np.float32)))
        network = self.network
        hidden = network.step(self.codes, self.values, self.previous, self.ring, self.generator)
        logits = network.action_head(hidden)
        chunk = network.action_head.decode(logits)
        action = self._choose(logits, chunk)
        self.output = Output(hidden, logits, chunk, action, network.predict(hidden, action))
        return self.output

    def _choose(self, logits: Tensor, chunk: Tensor) -> Tensor:
        action = chunk[:, 0]
        if self.sample:
            probability = (logits[0, 0] / self.temperature).softmax(dim=-1)
            drawn = torch.multinomial(probability, 1, generator=self.generator).squeeze(-1)
            action = self.network.action_head.centers[drawn].unsqueeze(0)
        if self.action_noise > 0:
            noise = torch.randn(action.shape, generator=self.generator, device=action.device)
            action = (action + self.action_noise * noise).clamp(-1, 1)
        return action
