"""The run report: what was asked for and what actually runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from wmrt.model.linear import Linear
from wmrt.model.network import Network
from wmrt.quant.layouts import stored, stored_bytes


@dataclass(frozen=True)
class RunReport:
    """Requested against resolved, for one built model.

    Attributes:
        requested: recipe, device, graph as asked for (None means: as the checkpoint stores it).
        resolved: recipe, device, graph with its reason, executor, torch version, threads.
        kernels: operator name to the number of linear layers that run it.
        layers: linear layer to its operator.
        bytes: held per part, computed from the tensors: packed_codes, scales, bf16_linears,
            layout_padding, float_linears, other_weights, ring, and under the native executor
            workspace: what its steps write, and its own copies of vectors.
        layout: of the packed weights: ``stored`` in the checkpoint, ``running`` (what the operators
            read), both None where nothing is packed or it was packed after loading; ``converted``
            says whether loading had to rearrange them.
    """

    requested: dict[str, Any]
    resolved: dict[str, Any]
    kernels: dict[str, int]
    layers: dict[str, str]
    bytes: dict[str, int] = field(default_factory=dict)
    layout: dict[str, Any] = field(default_factory=dict)

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
        own = {
            **dict(module.named_parameters(recurse=False)),
            **dict(module.named_buffers(recurse=False)),
        }
        fresh = [t for t in own.values() if t.data_ptr() not in seen or not t.numel()]
        seen.update(t.data_ptr() for t in fresh)
        parts.update(_parts(module, fresh))
    return dict(parts)


def _parts(module: Module, tensors: list[Tensor]) -> dict[str, int]:
    size = sum(t.numel() * t.element_size() for t in tensors)
    if not tensors or not isinstance(module, Linear):
        return {"other_weights": size}
    if module.weight is not None:
        bf16 = module.weight.dtype == torch.bfloat16
        return {"bf16_linears" if bf16 else "float_linears": size}
    assert module.recipe is not None  # a packed linear has one
    shape = (module.out_features, module.in_features)
    plain = stored("canonical", module.recipe.weight_format, shape)
    codes, total = stored_bytes({"codes": plain["codes"]}), stored_bytes(plain)
    parts = {"packed_codes": codes, "scales": total - codes}
    return {**parts, "layout_padding": size - total} if size > total else parts


def layouts(network: Network) -> dict[str, Any]:
    """Layout of the packed weights: stored, running, converted. One network has one of each."""
    packed = [m for m in network.modules() if isinstance(m, Linear) and m.weight is None]
    first = packed[0] if packed else None
    before, now = (first.stored_layout, first.layout) if first is not None else (None, None)
    return {
        "stored": before,
        "running": now,
        "converted": before is not None and before != now,
    }


def build_report(
    network: Network,
    requested: dict[str, Any],
    resolved: dict[str, Any],
    ring_bytes: int,
    workspace: int = 0,
) -> RunReport:
    """Read what will run off the built network itself."""
    held = held_bytes(network, ring_bytes)
    if workspace:
        held["workspace"] = workspace
    kernels = {name: m.kernel for name, m in network.named_modules() if isinstance(m, Linear)}
    return RunReport(
        requested,
        resolved,
        dict(Counter(kernels.values())),
        kernels,
        held,
        layouts(network),
    )
