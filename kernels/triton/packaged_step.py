"""A recorded step for a package of binaries: its kernels once each, its launches in order, and the
memory that they share, by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from wmrt.core.errors import UsageError
from wmrt.kernels.triton.aot_cases import AotCase, cases
from wmrt.kernels.triton.recorded import TYPES, Launch


@dataclass(frozen=True)
class Add:
    """``tensor += number``, all of it, between two launches."""

    tensor: Tensor
    number: int


class Stored(float):
    """A number of a launch that the checkpoint has; here its name is known, not its value. NaN, so
    that what is computed from it is seen."""

    def __new__(cls, name: str) -> Stored:
        return super().__new__(cls, math.nan)

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(frozen=True)
class Step:
    """One step of one capability.

    Attributes:
        name: of its kernels, such as ``step.1.3b.nvfp4``.
        about: what it is a step of, for the manifest.
        actions: in order.
        tensors: everything that launches take, by name; the first of a memory names the whole.
        roles: of the beginning of a name up to its first dot: weights, state and so on.
        host: for each block that is exchanged with the host, whether it is read (``in``) or written
            (``out``) by the step.
    """

    name: str
    capability: int
    about: Mapping[str, Any]
    actions: Sequence[Launch | Add]
    tensors: Mapping[str, Tensor]
    roles: Mapping[str, str]
    host: Mapping[str, str]

    def cases(self) -> list[AotCase]:
        """Its kernels, each once, with the grids that their modules have for them.

        Raises:
            UsageError: a kernel without a case there.
        """
        grids = {case.kernel: case.grid for case in cases()}
        unknown = {each.name for each in self._launches if each.kernel not in grids}
        if unknown:
            raise UsageError(f"{sorted(unknown)} have no case in wmrt.kernels.triton.aot_cases")
        return [replace(c, grid=grids[c.kernel]) for c in self._cases.values()]

    def described(self) -> dict[str, Any]:
        """As JSON: ``buffers``, whole memories with the tensors in them, and ``actions``, whose
        kernels are named as their cases."""
        return {
            **self.about,
            "name": self.name,
            "capability": self.capability,
            "buffers": [self._buffer(key, names) for key, names in self._memories.items()],
            "actions": [self._action(action) for action in self.actions],
            "host": dict(self.host),
        }

    @property
    def _launches(self) -> Iterator[Launch]:
        return (action for action in self.actions if isinstance(action, Launch))

    @cached_property
    def _cases(self) -> dict[Any, AotCase]:
        """By what a kernel is compiled from."""
        found: dict[Any, AotCase] = {}
        for launch in self._launches:
            if _key(launch) not in found:
                same = sum(case.kernel is launch.kernel for case in found.values())
                found[_key(launch)] = launch.case(f"{self.name}.{launch.name}.{same}")
        return found

    @cached_property
    def _memories(self) -> dict[int, list[str]]:
        """Names of tensors by the memory they lie in."""
        found: dict[int, list[str]] = {}
        for name, tensor in self.tensors.items():
            found.setdefault(_memory(tensor), []).append(name)
        return found

    def _buffer(self, key: int, names: Sequence[str]) -> dict[str, Any]:
        first = names[0]
        return {
            "name": first,
            "bytes": self.tensors[first].untyped_storage().nbytes(),
            "role": self.roles.get(first.split(".")[0], "scratch"),
            "tensors": [
                {
                    "name": name,
                    "offset": _offset(self.tensors[name]),
                    "type": TYPES[self.tensors[name].dtype],
                    "shape": list(self.tensors[name].shape),
                    "strides": list(self.tensors[name].stride()),
                }
                for name in names
            ],
        }

    def _action(self, action: Launch | Add) -> dict[str, Any]:
        if isinstance(action, Add):
            place = self._placed(action.tensor)
            kind, count = TYPES[action.tensor.dtype], action.tensor.numel()
            return {"add": place, "type": kind, "count": count, "number": action.number}
        return {
            "kernel": self._cases[_key(action)].name,
            "grid": list(action.grid),
            "dependent": action.dependent,
            "arguments": {name: self._given(v) for name, v in action.arguments.items()},
        }

    def _given(self, value: Any) -> Any:
        """A tensor as its memory and the bytes in front of it, a stored number as its name."""
        if isinstance(value, Tensor):
            return self._placed(value)
        if isinstance(value, Stored):
            return value.name
        if isinstance(value, float) and math.isnan(value):
            raise UsageError(
                "a launch takes a number that was computed from one of the checkpoint's; a program "
                "without this code cannot: compute it when the checkpoint is read"
            )
        return value

    def _placed(self, tensor: Tensor) -> list[Any]:
        names = self._memories.get(_memory(tensor))
        if names is None:
            raise UsageError(f"a launch takes {list(tensor.shape)} of {tensor.dtype} with no name")
        return [names[0], _offset(tensor)]


def _key(launch: Launch) -> Any:
    kinds, constants = launch.signature(), launch.constants
    how = (launch.aligned(), launch.warps, launch.dependent)
    return launch.kernel, tuple(kinds.items()), tuple(constants.items()), how


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _offset(tensor: Tensor) -> int:
    return int(tensor.storage_offset() * tensor.element_size())
