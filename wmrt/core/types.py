"""Action space in physical units.

Everywhere in wmrt an action is a float32 vector normalised to [-1, 1]; `ActionSpec` is the only
place that knows what those numbers mean on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from wmrt.core.errors import SafetyError


@dataclass(frozen=True)
class ActionDim:
    """One actuator.

    Args:
        name: what it moves, e.g. ``steering``.
        unit: unit of ``low`` and ``high``, e.g. ``rad``.
        low, high: physical value at -1 and at +1.
        rate_up: largest increase, in units per second.
        rate_down: largest decrease, in units per second (positive number).
    """

    name: str
    unit: str
    low: float
    high: float
    rate_up: float
    rate_down: float

    def __post_init__(self) -> None:
        for key in ("low", "high", "rate_up", "rate_down"):
            if not math.isfinite(getattr(self, key)):
                value = getattr(self, key)
                raise SafetyError(f"action {self.name!r}: {key} must be finite, got {value}")
        if self.low >= self.high:
            raise SafetyError(
                f"action {self.name!r}: low {self.low} must be below high {self.high}"
            )
        if self.rate_up <= 0 or self.rate_down <= 0:
            raise SafetyError(
                f"action {self.name!r}: rates must be positive, "
                f"got up {self.rate_up}, down {self.rate_down}"
            )

    def to_physical(self, value: float) -> float:
        """Normalised [-1, 1] to physical units."""
        return self.low + (value + 1.0) * 0.5 * (self.high - self.low)

    def to_normalised(self, value: float) -> float:
        """Physical units to normalised [-1, 1] (not clamped)."""
        return 2.0 * (value - self.low) / (self.high - self.low) - 1.0

    def max_delta(self, seconds: float) -> tuple[float, float]:
        """Largest allowed (increase, decrease) in normalised units over ``seconds``.

        No time, time running backwards and a NaN interval all allow no change.
        """
        elapsed = seconds if seconds > 0 else 0.0
        scale = 2.0 * elapsed / (self.high - self.low)
        return self.rate_up * scale, self.rate_down * scale


@dataclass(frozen=True)
class ActionSpec:
    """The action vector: one `ActionDim` per component, in order."""

    dims: tuple[ActionDim, ...]

    def __post_init__(self) -> None:
        names = [dim.name for dim in self.dims]
        if not names or len(set(names)) != len(names):
            raise SafetyError(f"action names must be unique and at least one, got {names}")

    def __len__(self) -> int:
        return len(self.dims)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(dim.name for dim in self.dims)

    def to_physical(self, action: Sequence[float]) -> dict[str, float]:
        """Normalised vector, one number per dim in order, to ``{name: physical value}``.

        Raises `SafetyError` if the vector has another length than the spec.
        """
        if len(action) != len(self.dims):
            raise SafetyError(f"action has {len(action)} numbers, {self.names} needs {len(self)}")
        pairs = zip(self.dims, action, strict=True)
        return {dim.name: dim.to_physical(float(value)) for dim, value in pairs}

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(dim) for dim in self.dims]

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]]) -> ActionSpec:
        """Inverse of `to_json`. Raises `SafetyError` on unknown or missing keys."""
        try:
            return cls(tuple(ActionDim(**entry) for entry in data))
        except TypeError as error:
            raise SafetyError(
                f"action spec: {error}; each entry needs name, unit, low, high, rate_up, rate_down"
            ) from None
