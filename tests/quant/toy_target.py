"""A model of matrices: small enough to compute by hand what calibration has to do to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wmrt.quant import QuantizedTensor, Recipe
from wmrt.quant.calibrate import Outputs, Stage, Tap
from wmrt.quant.scaling import Fold

WIDTH, INNER = 64, 96


@dataclass
class ToyStage:
    """x -> x + relu(x A^T) B^T."""

    name: str
    stored: dict[str, Tensor]
    last: bool = False
    held: dict[str, Tensor] = field(default_factory=dict)
    packed: dict[str, QuantizedTensor] = field(default_factory=dict)
    opened: int = 0
    divided: dict[str, Tensor] = field(default_factory=dict)

    def linears(self) -> Sequence[str]:
        return [f"{self.name}.a", f"{self.name}.b"]

    def open(self) -> None:
        self.held = {name: tensor.clone() for name, tensor in self.stored.items()}
        self.opened += 1

    def weight(self, name: str) -> Tensor:
        return self.held[name]

    def replace(self, name: str, weight: Tensor) -> None:
        self.held[name] = weight

    def output_scale(self, name: str) -> Tensor | None:
        return self.divided.get(name)

    def rotate(self, seed: int) -> None:
        raise AssertionError("toys have no rotation")

    def folds(self) -> Sequence[Fold]:
        """From A's rows into B's columns: relu commutes with positive scales."""
        first, second = self.linears()

        def apply(scale: Tensor) -> None:
            self.held[first] /= scale.unsqueeze(1)
            self.held[second] *= scale
            self.divided[first] = scale

        return [Fold(second, torch.arange(INNER), apply)]

    def run(self, stream: Any, tap: Tap) -> Any:
        first, second = self.linears()
        inner = torch.relu(tap(first, stream) @ self.held[first].T)
        x = stream + tap(second, inner) @ self.held[second].T
        return Outputs(x, x[..., :2]) if self.last else x

    def close(self, packed: Mapping[str, QuantizedTensor], recipe: Recipe) -> None:
        self.packed, self.held = dict(packed), {}

    def discard(self) -> None:
        self.held = {}


@dataclass
class Toy:
    parts: list[ToyStage]
    keep: tuple[str, ...] = ()

    def stages(self) -> Sequence[Stage]:
        return self.parts

    def keeps(self, name: str) -> bool:
        return name in self.keep


def toy(seed: int, stages: int = 2, keep: tuple[str, ...] = ()) -> Toy:
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for i in range(stages):
        weights = {
            f"s{i}.a": torch.randn(INNER, WIDTH, generator=generator) / WIDTH**0.5,
            f"s{i}.b": torch.randn(WIDTH, INNER, generator=generator) / INNER**0.5,
        }
        parts.append(ToyStage(f"s{i}", weights, last=i == stages - 1))
    return Toy(parts, keep)


def inputs(seed: int, count: int = 200) -> Tensor:
    """Correlated, as activations are: of a space half as wide, with a little noise."""
    generator = torch.Generator().manual_seed(seed + 1)
    basis = torch.randn(WIDTH // 2, WIDTH, generator=generator)
    drawn = torch.randn(count, WIDTH // 2, generator=generator) @ basis
    return drawn / 6 + 0.05 * torch.randn(count, WIDTH, generator=generator)
