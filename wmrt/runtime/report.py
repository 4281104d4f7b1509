"""The run report: what was asked for and what actually runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from wmrt.model.linear import Linear
from wmrt.model.network import Network


@dataclass(frozen=True)
class RunReport:
    """Requested against resolved, for one built model.

    Attributes:
        requested: recipe, device, graph as asked for (None means: as the checkpoint stores it).
        resolved: recipe, device, graph with its reason, executor, torch version, threads.
        kernels: operator name to the number of linear layers that run it.
        layers: linear layer to its operator.
        bytes: held per part, computed from the tensors: packed_codes, scales, bf16_linears,
            float_linears, other_weights, ring.
    """

    requested: dict[str, Any]
    resolved: dict[str, Any]
    kernels: dict[str, int]
    layers: dict[str, str]
    bytes: dict[str, int] = field(default_factory=dict)

    @property
    def resident_bytes(self) -> int:
        """Sum of the parts: what this model keeps in memory (tensor bytes, not the process's
        RSS)."""
        return sum(self.bytes.values())

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "model_bytes": self.resident_bytes}


def held_bytes(network: Network, ring_bytes: int) -> dict[str, int]:
    """Bytes of every tensor the network keeps, by part. Each storage is counted once."""
    parts: Counter[str] = Counter(ring=ring_bytes)
    seen: set[int] = set()
    for module in network.modules():
        tensors = {
            **dict(module.named_parameters(recurse=False)),
            **dict(module.named_buffers(recurse=False)),
        }
        for name, tensor in tensors.items():
            if tensor.data_ptr() in seen and tensor.numel():
                continue
            seen.add(tensor.data_ptr())
            parts[_part(module, name, tensor)] += tensor.numel() * tensor.element_size()
    return dict(parts)


def _part(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> str:
    if not isinstance(module, Linear):
        return "other_weights"
    if name == "weight":
        return "bf16_linears" if tensor.dtype == torch.bfloat16 else "float_linears"
    return "packed_codes" if name == "codes" else "scales"


def build_report(
    network: Network, requested: dict[str, Any], resolved: dict[str, Any], ring_bytes: int
) -> RunReport:
    """Read what will run off the built network itself."""
    layers = {name: m.kernel for name, m in network.named_modules() if isinstance(m, Linear)}
    return RunReport(
        requested, resolved, dict(Counter(layers.values())), layers, held_bytes(network, ring_bytes)
    )
