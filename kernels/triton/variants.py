"""Which form of a kernel a compute capability gets: one table, kernels/tuned/gemv.json."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from wmrt.core.errors import UnsupportedError

TABLE = Path(__file__).parents[1] / "tuned/gemv.json"


@dataclass(frozen=True)
class Variant:
    """What one compute capability gets.

    Attributes:
        int8, bf16: the form of `wmrt.kernels.triton.decode` for activations of this kind.
        two_rows_from: rows of a weight from which every lane takes two at batch 1. Fewer would
            leave processors without work.
    """

    int8: str
    bf16: str
    two_rows_from: int


@functools.cache
def variant(capability: int) -> Variant:
    """The table's entry; `UnsupportedError` lists what it has."""
    table = json.loads(TABLE.read_text("utf-8"))
    if str(capability) not in table:
        raise UnsupportedError(
            f"no kernels are chosen for compute capability {capability}; there are: "
            f"{', '.join(table)}; add a line to {TABLE.name}"
        )
    return Variant(**table[str(capability)])
