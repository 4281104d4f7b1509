"""Machine code as nvdisasm prints it, read for what decides the speed of a memory-bound kernel.

Loads of weights are the global loads marked evict-first (``.EF``); see `AotCase`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_LABEL = re.compile(r"^(\.L\w+):")
_TARGET = re.compile(r"`\((\.L\w+)\)")
_NARROW = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


class Instruction(NamedTuple):
    """One instruction: its name with all suffixes, and the index a branch goes to, else None."""

    name: str
    target: int | None

    def starts(self, beginning: str) -> bool:
        """Whether the parts of the name begin with those of ``beginning``: IDP.4A, not IDP.4."""
        wanted = beginning.split(".")
        return self.name.split(".")[: len(wanted)] == wanted


class Region(NamedTuple):
    """The part of a kernel that its weights pass through: ``[start, stop)`` of its instructions."""

    start: int
    stop: int
    looped: bool


def parse(text: str) -> list[Instruction]:
    """The instructions of ``nvdisasm -c``, in order, less padding and the trap at the end."""
    labels: dict[str, int] = {}
    found: list[tuple[str, str | None]] = []
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label is not None:
            labels[label[1]] = len(found)
            continue
        match = _LINE.search(line)
        if match is not None and match[2] != "NOP":
            goes = _TARGET.search(match[3]) if match[2].startswith("BRA") else None
            found.append((match[2], goes[1] if goes else None))
    resolved = [Instruction(name, labels[goes] if goes else None) for name, goes in found]
    return [each for index, each in enumerate(resolved) if each.target != index]


def count(code: Iterable[Instruction], *beginnings: str) -> int:
    """Instructions whose name begins with any of ``beginnings``."""
    return sum(any(each.starts(b) for b in beginnings) for each in code)


def weight_loads(code: Iterable[Instruction]) -> list[int]:
    """Widths in bits of the loads of weights."""
    return [
        next((_NARROW[part] for part in each.name.split(".") if part in _NARROW), 32)
        for each in code
        if each.starts("LDG") and "EF" in each.name.split(".")
    ]


def main_region(code: Sequence[Instruction]) -> Region:
    """The innermost loop that loads the most weights; without one, the whole kernel, less the
    functions behind its end: slow paths of division and root, for subnormals."""
    loops = sorted(
        (index + 1 - each.target, each.target, index + 1)
        for index, each in enumerate(code)
        if each.target is not None and each.target <= index
    )
    best, most = Region(0, _end(code), looped=False), 0
    inner: list[Region] = []
    for _, start, stop in loops:  # the shortest first, so the inner before the outer
        loaded = sum(weight_loads(code[start:stop]))
        if not loaded or any(start <= r.start and r.stop <= stop for r in inner):
            continue
        inner.append(Region(start, stop, looped=True))
        if loaded > most:
            best, most = inner[-1], loaded
    return best


def _end(code: Sequence[Instruction]) -> int:
    """Where functions begin that are called, or the end."""
    exits = [index for index, each in enumerate(code) if each.starts("EXIT")]
    called = exits and any(each.starts("RET") for each in code[exits[-1] :])
    return exits[-1] + 1 if called else len(code)
