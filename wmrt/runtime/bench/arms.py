"""What a bench compares: something that takes one whole step, or the reason why it cannot here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class Arm(Protocol):
    """One way to take a whole step, built and warm, with everything allocated."""

    @property
    def name(self) -> str:
        """Who steps, as in a table: ``native``, ``eager``, ``onnxruntime-matmulnbits``."""

    @property
    def recipe(self) -> str:
        """Weights and activations, under the name of a recipe where one says it."""

    @property
    def threads(self) -> int:
        """Threads that compute, at least 1."""

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that one step reads."""

    @property
    def detail(self) -> Mapping[str, Any]:
        """What else a result has to say of it: versions, settings, errors against float64. JSON."""

    def step(self) -> None:
        """One whole step at batch 1. Returns when it is done, not when it is queued."""

    def close(self) -> None:
        """Give memory and threads back. Called once; the arm steps no more."""


@runtime_checkable
class Segmented(Protocol):
    """An arm that tells how long the parts of a step took."""

    @property
    def segments(self) -> Sequence[str]:
        """Their names, in order."""

    def segments_ns(self) -> Sequence[int]:
        """Nanoseconds of each in the last step."""


@dataclass(frozen=True)
class Missing:
    """An arm that was asked for and cannot run here. Named in the result, never left out."""

    name: str
    reason: str

    def to_json(self) -> dict[str, str]:
        return {"name": self.name, "reason": self.reason}
