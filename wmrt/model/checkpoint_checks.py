"""Comparisons that a checkpoint has to pass before anything of it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from wmrt.core.errors import CheckpointError
from wmrt.model.checkpoint_config import dtype_name
from wmrt.model.schema import StateSchema


def check_tensors(
    expected: Mapping[str, tuple[tuple[int, ...], torch.dtype]], tensors: Mapping[str, Tensor]
) -> None:
    """Raise `CheckpointError` unless ``tensors`` has exactly the expected names, shapes, dtypes.

    The message lists every missing, unexpected, misshapen and mistyped name (8 of each kind).
    """
    shapes, dtypes = [], []
    for name in sorted(expected.keys() & tensors.keys()):
        shape, dtype = expected[name]
        got = tensors[name]
        if tuple(got.shape) != tuple(shape):
            shapes.append(f"{name} is {list(got.shape)}, expected {list(shape)}")
        if got.dtype != dtype:
            dtypes.append(f"{name} is {dtype_name(got.dtype)}, expected {dtype_name(dtype)}")
    problems = {
        "missing tensors": sorted(expected.keys() - tensors.keys()),
        "unexpected tensors": sorted(tensors.keys() - expected.keys()),
        "wrong shape": shapes,
        "wrong dtype": dtypes,
    }
    found = _describe(problems)
    if found:
        raise CheckpointError(found)


def check_schema(expected: StateSchema, got: StateSchema) -> None:
    """Raise `CheckpointError` unless both schemas read every state alike; lists what differs.

    Buckets and their knots may differ: they are fitted in training and belong to the model.
    """
    if expected.input_hash == got.input_hash:
        return
    found = expected.differences(got)
    raise CheckpointError(
        f"the model's schema {got.name!r} (hash {got.input_hash[:12]}) is not the expected "
        f"{expected.name!r} (hash {expected.input_hash[:12]}); expected against got: "
        f"{some(found, separator='; ')}"
    )


def _describe(problems: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{label}: {some(names)}" for label, names in problems.items() if names)


def some(names: Iterable[str], most: int = 8, separator: str = ", ") -> str:
    """The first ``most`` names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return separator.join(listed[:most]) + more
