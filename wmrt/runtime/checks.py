"""What a caller of the runtime hands in, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from wmrt.core.errors import StateError, UnsupportedError, UsageError
from wmrt.core.types import ActionSpec
from wmrt.kernels.triton.library import require_cuda


def resolve_device(name: str) -> torch.device:
    """The torch device.

    Raises:
        UsageError: another kind of device.
        UnsupportedError: a CUDA device that is not here; the message says what is missing.
    """
    # Read here, not by torch: it keeps the index in 8 bits, so cuda:256 would run on cuda:0.
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name) if isinstance(name, str) else None
    if match is None:
        raise UsageError(f"device {name!r} is unknown; use cpu, cuda or cuda:N")
    if name == "cpu":
        return torch.device(name)
    try:
        require_cuda()
    except UnsupportedError as error:
        raise UnsupportedError(f"device {name!r} cannot be had: {error}") from error
    found = torch.cuda.device_count()
    if int(match[1] or 0) >= found:
        raise UnsupportedError(
            f"device {name!r} cannot be had: torch sees {found} CUDA devices, cuda:0 to "
            f"cuda:{found - 1}; use one of them, or device=cpu"
        )
    return torch.device(name)


def check_action(action: ArrayLike, spec: ActionSpec) -> tuple[float, ...]:
    """An action as floats; `StateError` unless it is one number in [-1, 1] per dimension."""
    values: tuple[float, ...] = ()
    if not isinstance(action, (str, bytes, Mapping)):
        try:
            values = tuple(float(a) for a in action)  # type: ignore[union-attr,arg-type]
        except (TypeError, ValueError, OverflowError):
            values = ()
    if len(values) != len(spec) or not all(-1.0 <= a <= 1.0 for a in values):
        raise StateError(
            f"previous_action {' '.join(repr(action).split())[:80]}: expected {len(spec)} numbers "
            f"({', '.join(spec.names)}) in [-1, 1]"
        )
    return values


def check_plan(actions: ArrayLike, spec: ActionSpec) -> Tensor:
    """Action sequences as float32[N, T, A] on the CPU, from [T, A] or [N, T, A].

    Raises `UsageError` for another shape, an empty one, or values outside [-1, 1].
    """
    try:
        plan = torch.from_numpy(np.array(actions, np.float32))
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"actions are no array of numbers: {error}") from None
    plan = plan.unsqueeze(0) if plan.ndim == 2 else plan
    if plan.ndim != 3 or plan.shape[-1] != len(spec) or not plan.numel():
        raise UsageError(
            f"actions of shape {list(np.shape(actions))}; expected [T, A] or [N, T, A] "
            f"with A={len(spec)}, none of them 0"
        )
    if not bool(torch.isfinite(plan).all()) or float(plan.abs().max()) > 1:
        raise UsageError("actions must be finite and in [-1, 1]")
    return plan
