"""Which form of a kernel a compute capability gets: one table, kernels/tuned/gemv.json."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from wmrt.core.errors import UnsupportedError

#: First compute capability with programmatic dependent launch.
DEPENDENT_FROM = 90
TABLE = Path(__file__).parents[1] / "tuned/gemv.json"


@dataclass(frozen=True)
class Variant:
    """What one compute capability gets.

    Attributes:
        int8, bf16: the form of `wmrt.kernels.triton.decode` for activations of this kind.
        two_rows_from: rows of a weight from which every lane takes two at batch 1. Fewer would
            leave processors without work.
        dependent: whether the launches of a step may begin before the one before them has ended
            (programmatic dependent launch, from sm_90 on): they ask for their first weights, then
            wait for it. False in the table until a GPU has shown that it gains and does no harm.
    """

    int8: str
    bf16: str
    two_rows_from: int
    dependent: bool = False


@functools.cache
def variant(capability: int) -> Variant:
    """The table's entry; `UnsupportedError` lists what it has."""
    table = json.loads(TABLE.read_text("utf-8"))
    if str(capability) not in table:
        raise UnsupportedError(
            f"no kernels are chosen for compute capability {capability}; there are: "
            f"{', '.join(table)}; add a line to {TABLE.name}"
        )
    found = Variant(**table[str(capability)])
    if found.dependent and capability < DEPENDENT_FROM:
        raise UnsupportedError(
            f"{TABLE.name} asks for dependent launches on compute capability {capability}; there "
            f"are such from {DEPENDENT_FROM} on: set dependent to false"
        )
    return found
