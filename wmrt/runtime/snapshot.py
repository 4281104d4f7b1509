"""A session's memory, and the model it belongs to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wmrt.core.errors import UsageError


@dataclass(frozen=True)
class Origin:
    """What a memory is worth nothing without: past states are numbers that only the same network
    with the same weights under the same recipe reads as they were written.

    Attributes:
        schema: content hash of the schema.
        network: configuration of the network, plain data.
        weights: see `WorldModel.weights_sha256`.
        recipe: `Recipe.to_json` of what runs.
    """

    schema: str
    network: dict[str, Any]
    weights: str
    recipe: dict[str, Any]

    def require_same(self, other: Origin) -> None:
        """Raise `UsageError` unless ``other``, of a snapshot, is this model's own."""
        names = ("schema", "network", "weights", "recipe")
        differing = [name for name in names if getattr(self, name) != getattr(other, name)]
        if differing:
            full = self.recipe["name"] == other.recipe["name"] and "recipe" in differing
            raise UsageError(
                f"the snapshot belongs to another model: it is of {other._text(full)}, this one "
                f"runs {self._text(full)}; they differ in {', '.join(differing)}"
            )

    def _text(self, full: bool) -> str:
        recipe = self.recipe if full else self.recipe["name"]
        return f"weights {self.weights[:16]} under recipe {recipe}"


@dataclass(frozen=True)
class Snapshot:
    """Everything that makes a session continue where it was; plain tensors and names."""

    origin: Origin
    tensors: dict[str, Tensor]
    generator: Tensor
    last_action: tuple[float, ...]


def content_hash(network: nn.Module) -> str:
    """SHA-256 over every stored tensor of ``network`` with its name, dtype and shape."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(data.numpy().data)
    return digest.hexdigest()
