"""The encoded form of one state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wmrt.model.issues import Issue


@dataclass(frozen=True, eq=False)
class Encoded:
    """An encoded state; unpacks as ``codes, values, issues``.

    Attributes:
        codes: int32[F], 0 = unknown; a number's bucket + 1; 1.. for a category's values in order;
            1 false, 2 true.
        values: float32[F], the rounded, clamped number; 0 where there is none.
        issues: what was wrong, by column, then undeclared keys, then the state as a whole.
        q: int64[F], the exact integers (`wmrt.model.rounding`), `UNKNOWN` for unknown.
        instruction: the instruction's text in Unicode NFC, None when there is none.
    """

    codes: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    issues: tuple[Issue, ...]
    q: npt.NDArray[np.int64]
    instruction: str | None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.codes, self.values, self.issues))


@dataclass
class Raw:
    """What `Encoder` fills in: lists of F entries, one cause per column, and the rest.

    ``q`` holds whole floats or ints: every q, and `UNKNOWN`, is exact in float64.
    """

    q: list[float]
    codes: list[int]
    values: list[float]
    notes: dict[int, Issue]
    tail: list[Issue]
    instruction: str | None = None
