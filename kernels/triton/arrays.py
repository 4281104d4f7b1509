"""What the pointers of a kernel point to: role, shape, and for weights where they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wmrt.core.errors import UsageError
from wmrt.kernels.triton.formulas import Formula, folded, listed, parsed_all

#: weights: no launch writes them. state: read and written. scratch: written and read back by the
#: same operator, of no use behind it. unused: a pointer that this kernel does not follow.
ROLES = ("weights", "input", "output", "state", "scratch", "unused")


@dataclass(frozen=True)
class Array:
    """Role, shape, and of weights the ``stored`` name: ``words`` and ``lane_scales`` of layout
    gpu_gemv, or a field of the records of `wmrt.kernels.state_arguments`."""

    role: str
    shape: tuple[Formula, ...]
    stored: str = ""

    def folded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """For a manifest, with these values in place of their names."""
        shape = [listed(folded(axis, values)) for axis in self.shape]
        found = {"role": self.role, "shape": shape}
        return {**found, "stored": self.stored} if self.stored else found


def arrays(text: str) -> dict[str, Array]:
    """Arrays by name, in lines or with semicolons between: ``name role axis, axis``, for weights
    ``name weights:stored axis, axis``.

    Raises:
        UsageError: one that is not understood, a role that is none of `ROLES`.
    """
    found = {}
    for one in filter(None, map(str.strip, text.replace(";", "\n").splitlines())):
        name, said, axes = (*one.split(None, 2), "", "")[:3]
        role, _, stored = said.partition(":")
        if role not in ROLES or not axes:
            raise UsageError(f"{one!r}: give a name, one of {', '.join(ROLES)}, and axes")
        found[name] = Array(role, parsed_all(axes), stored)
    return found


def not_followed(given: Mapping[str, Array], *names: str) -> dict[str, Array]:
    """The same, where a kernel's constants keep it from following these pointers."""
    return {**given, **{name: Array("unused", ()) for name in names}}
