"""How a robot picks its action, and the options of a session that say so."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from wmrt.core.errors import UsageError

#: Options of a session and their types.
_OPTIONS: dict[str, type] = {
    "seed": Integral,
    "action_noise": Real,
    "sample": bool,
    "temperature": Real,
}
_WORDS = {Integral: "a whole number", Real: "a number", bool: "True or False"}


def check_options(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for an option that a session has not, or a value of another type."""
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise UsageError(
            f"unknown option {', '.join(unknown)}; a session has {', '.join(_OPTIONS)}"
        )
    for name, value in options.items():
        kind = _OPTIONS[name]
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise UsageError(f"{name}={value!r}: expected {_WORDS[kind]}")
    if not -(2**63) <= options.get("seed", 0) < 2**64:
        raise UsageError(f"seed={options['seed']}: a generator takes 64 bits")


class Choice:
    """How a robot picks its action: the chunk's first row, or drawn, or with exploration noise.

    Args: see `Session`.
    """

    def __init__(
        self,
        centers: Tensor,
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
        self._centers = centers
        self.seed, self.action_noise = seed, action_noise
        self.sample, self.temperature = sample, temperature
        self.generator = torch.Generator(device=centers.device).manual_seed(seed)

    @property
    def draws(self) -> bool:
        """Whether chance plays a part."""
        return self.sample or self.action_noise > 0

    def action(self, logits: Tensor, chunk: Tensor) -> Tensor:
        """float32[1, A] from logits [1, H, A, bins] and the decoded chunk [1, H, A]."""
        action = chunk[:, 0]
        if self.sample:
            probability = (logits[0, 0] / self.temperature).softmax(dim=-1)
            drawn = torch.multinomial(probability, 1, generator=self.generator).squeeze(-1)
            action = self._centers[drawn].unsqueeze(0)
        if self.action_noise > 0:
            noise = torch.randn(action.shape, generator=self.generator, device=action.device)
            action = (action + self.action_noise * noise).clamp(-1, 1)
        return action
