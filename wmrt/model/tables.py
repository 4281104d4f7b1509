"""Many states at once: the vectorised forms, equal to the scalar path of `wmrt.model.encoding`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wmrt.core.errors import SchemaError, StateError
from wmrt.model.fields import Column
from wmrt.model.rounding import POWERS, UNKNOWN, round_array


def decode(column: Column, q: int) -> bool | float | str | None:
    """One integer back to a plain value."""
    if q == UNKNOWN:
        return None
    if column.numeric:
        return float(q / POWERS[column.decimals])
    return q == 2 if column.kind == "flag" else column.values[q - 1]


class Tables:
    """Per-column constants of one schema as arrays."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self._low = np.array([c.q_low for c in columns], dtype=np.int64)
        self._high = np.array([c.q_high for c in columns], dtype=np.int64)
        self._index = np.array([i for i, c in enumerate(columns) if c.numeric], dtype=np.int64)
        chosen = [columns[i] for i in self._index.tolist()]
        self._decimals = np.array([c.decimals for c in chosen], dtype=np.int64)
        self._scale = np.array([POWERS[c.decimals] for c in chosen], dtype=np.float64)
        # The bucket bounds of all columns in one ascending array, column c's moved by shift[c]:
        # one search then finds every bucket.
        spans = [c.q_high - c.q_low + 2 for c in chosen]
        starts = list(itertools.accumulate(spans, initial=0))
        if starts[-1] >= 2**62:
            raise SchemaError(
                f"{len(chosen)} numeric columns hold {starts[-1]:.3g} distinct values together; "
                "use fewer decimals or split the schema (limit 2**62)"
            )
        shift = [start - c.q_low for start, c in zip(starts, chosen, strict=False)]
        bounds = [b + s for c, s in zip(chosen, shift, strict=True) for b in c.bounds]
        self._shift = np.array(shift, dtype=np.int64)
        self._bounds = np.array(bounds, dtype=np.int64)
        counts = [len(c.bounds) for c in chosen]
        self._before = np.array(list(itertools.accumulate(counts, initial=-1))[:-1], dtype=np.int64)

    def check_q(self, q: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """``q`` as int64[..., F]; `StateError` if shape, type or any value is not the schema's."""
        array = np.asarray(q)
        count = len(self._columns)
        whole = array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64)
        if not whole or array.ndim < 1 or array.shape[-1] != count:
            raise StateError(
                f"q must be int64 of shape [..., {count}], got {array.dtype} of {array.shape}"
            )
        wide = array.astype(np.int64)
        bad = ((wide < self._low) & (wide != UNKNOWN)) | (wide > self._high)
        if bad.any():
            first = tuple(int(k[0]) for k in np.nonzero(bad))
            column = self._columns[first[-1]]
            raise StateError(
                f"{column.name}: q {wide[first]} is not a state of this schema; allowed: "
                f"{column.q_low} to {column.q_high}, or {UNKNOWN} for unknown"
            )
        return wide

    def encode(self, q: npt.ArrayLike) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Codes and values of integers; see `StateSchema.encode_q`."""
        wide = self.check_q(q)
        codes = np.where(wide == UNKNOWN, 0, wide)
        values = np.zeros(wide.shape, dtype=np.float32)
        numbers = codes[..., self._index]
        values[..., self._index] = (numbers / self._scale).astype(np.float32)
        buckets = np.searchsorted(self._bounds, numbers + self._shift, side="right") - self._before
        known = wide[..., self._index] != UNKNOWN
        codes[..., self._index] = np.where(known, buckets, 0)
        return codes.astype(np.int32), values

    def quantize(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Integers of readings; see `StateSchema.quantize_array`."""
        array = np.asarray(values)
        count = len(self._index)
        if array.dtype.kind not in "fiu" or array.ndim < 1 or array.shape[-1] != count:
            raise StateError(
                f"readings must be numbers of shape [..., {count}], one per numeric column, "
                f"got {array.dtype} of {array.shape}"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            # By way of float64, as the scalar path does, so that integers round alike.
            readings = array.astype(np.float64).astype(np.float32)
        low, high = self._low[self._index], self._high[self._index]
        return round_array(readings, self._decimals, low, high)
