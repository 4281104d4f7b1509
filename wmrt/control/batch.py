"""Several robots: one's part of what was batched, and that they share nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wmrt.control import settings
from wmrt.control.controller import Controller
from wmrt.core.errors import SafetyError


def row(batch: Any, index: int) -> Any:
    """One sub-environment's part of a batched observation, copied.

    Args:
        batch: an array or sequence, or mappings and tuples of them, as batched ``Box``,
            ``Discrete``, ``Dict`` and ``Tuple`` spaces give them.
    """
    if isinstance(batch, Mapping):
        return {key: row(value, index) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row(value, index) for value in batch)
    part = batch[index]
    return part.copy() if isinstance(part, np.ndarray) else part


def one_per_robot(controllers: Any) -> tuple[Controller, ...]:
    """The controllers, checked: at least one, and none shares its policy or breakers.

    Raises:
        SafetyError: says what is shared.
    """
    ok = isinstance(controllers, Sequence) and len(controllers) > 0
    ok = ok and all(isinstance(each, Controller) for each in controllers)
    settings.require(ok, "controllers", "a sequence of Controller, one per robot", controllers)
    for name in ("model", "breakers"):
        if len({id(getattr(each, name)) for each in controllers}) < len(controllers):
            raise SafetyError(
                f"controllers: two of them share their {name}, so one robot's memory would reach "
                "another; give each its own (WorldModel.fork shares the weights alone)"
            )
    return tuple(controllers)
