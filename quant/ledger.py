"""Where every byte of a model goes, and how each figure was obtained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.formats import block_format
from wmrt.quant.tensor import QuantizedTensor, layout

How = Literal["measured", "estimated", "missing"]
Column = Literal["payload", "scales", "padding", "excluded", "held", "read"]
COLUMNS: tuple[Column, ...] = ("payload", "scales", "padding", "excluded", "held", "read")
_TOTALS = ("overhead", "file", "originals", "ring", "ring_read", "workspace", "step")


@dataclass(frozen=True)
class Figure:
    """A number of bytes and where it comes from; None exactly when it is missing."""

    bytes: int | None
    how: How

    def __post_init__(self) -> None:
        if (self.bytes is None) != (self.how == "missing"):
            raise QuantizationError(f"a figure of {self.bytes} bytes cannot be {self.how}")

    def __add__(self, other: Figure) -> Figure:
        """The sum, tagged with the weaker of the two tags."""
        if self.bytes is None or other.bytes is None:
            return MISSING
        same = self.how == other.how == "measured"
        return Figure(self.bytes + other.bytes, "measured" if same else "estimated")

    def to_json(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "how": self.how}


MISSING = Figure(None, "missing")
NOTHING = Figure(0, "measured")


def total(figures: Iterable[Figure]) -> Figure:
    """Sum of figures; missing as soon as one is missing."""
    result = NOTHING
    for figure in figures:
        result = result + figure
    return result


@dataclass(frozen=True)
class Entry:
    """The bytes of one weight.

    * `payload`, `scales`, `padding`, `excluded`: as stored: codes of real elements, scales, codes
      and scales of no element, or the whole tensor where no recipe packs it
    * `held`, `read`: in memory, and what one step reads of that; None where both are as stored and
      a step reads all of it
    """

    name: str
    format: str
    payload: Figure
    scales: Figure
    padding: Figure
    excluded: Figure
    zeroed_blocks: int = 0
    held: Figure | None = None
    read: Figure | None = None

    @property
    def total(self) -> Figure:
        """Bytes as stored."""
        return total((self.payload, self.scales, self.padding, self.excluded))

    def figure(self, column: str) -> Figure:
        """One of `COLUMNS`."""
        kept: Figure | None = getattr(self, column)
        if kept is not None:
            return kept
        return self.total if column == "held" else self.figure("held")


def packed_entry(name: str, weight: QuantizedTensor) -> Entry:
    """The entry of a packed weight, measured from its tensors (estimated if they hold no data)."""
    how: How = "estimated" if weight.codes.is_meta else "measured"
    return weight_entry(name, weight.format, weight.shape, weight.nbytes, how, weight.zeroed_blocks)


def estimated_entry(name: str, format: str, shape: tuple[int, int]) -> Entry:
    """What a weight [N, K] would take in `format`, from the format alone."""
    stored = layout(block_format(format), shape)
    return weight_entry(name, format, shape, stored_bytes(stored), "estimated")


def weight_entry(
    name: str, format: str, shape: tuple[int, int], size: int, how: How, zeroed_blocks: int = 0
) -> Entry:
    """The entry of a weight [N, K] packed as `format` that takes `size` bytes in its layout.

    What is neither a code of one of its elements nor a scale of one of its blocks is padding.
    """
    spec = block_format(format)
    canonical = layout(spec, shape)
    payload = shape[0] * spec.code_bytes(shape[1])
    scales = stored_bytes({key: form for key, form in canonical.items() if key != "codes"})
    return Entry(
        name,
        format,
        Figure(payload, how),
        Figure(scales, how),
        Figure(size - payload - scales, how),
        NOTHING,
        zeroed_blocks,
    )


def stored_bytes(tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> int:
    """Bytes of tensors known by shape and dtype."""
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in tensors.values())


def excluded_entry(
    name: str, tensor: Tensor, *, held: Figure | None = None, read: Figure | None = None
) -> Entry:
    """The entry of a tensor that no recipe packs; see `Entry` for `held` and `read`."""
    size = tensor.numel() * tensor.element_size()
    figure = Figure(size, "estimated" if tensor.is_meta else "measured")
    kind = str(tensor.dtype).removeprefix("torch.")
    return Entry(name, kind, NOTHING, NOTHING, NOTHING, figure, held=held, read=read)


@dataclass(frozen=True)
class Ledger:
    """Every weight of a model, and what a session adds: the state ring and the workspace.

    * `overhead`: what the weight file holds beside tensors
    * `originals`: stored forms of tensors that were widened at load, where the file stays mapped
    * `ring_read`: what one step reads of the ring
    """

    entries: tuple[Entry, ...]
    ring: Figure = field(default=MISSING)
    workspace: Figure = field(default=MISSING)
    overhead: Figure = field(default=MISSING)
    originals: Figure = field(default=NOTHING)
    ring_read: Figure = field(default=MISSING)

    @classmethod
    def of(
        cls,
        packed: Mapping[str, QuantizedTensor],
        others: Mapping[str, Tensor],
        *,
        ring: Figure = MISSING,
        workspace: Figure = MISSING,
    ) -> Ledger:
        """Packed weights by name, every other tensor by name, and the session's own bytes."""
        entries = [packed_entry(name, weight) for name, weight in packed.items()]
        entries += [excluded_entry(name, tensor) for name, tensor in others.items()]
        return cls(tuple(sorted(entries, key=lambda entry: entry.name)), ring, workspace)

    def column(self, name: Column) -> Figure:
        """Total of one column over all weights."""
        return total(entry.figure(name) for entry in self.entries)

    @property
    def weights(self) -> Figure:
        """Bytes of all weights as stored."""
        return total(entry.total for entry in self.entries)

    @property
    def file(self) -> Figure:
        """Bytes of the weight file."""
        return self.weights + self.overhead

    @property
    def total(self) -> Figure:
        """Weights as held in memory and what stays mapped beside them, ring and workspace."""
        return total((self.column("held"), self.originals, self.ring, self.workspace))

    @property
    def step(self) -> Figure:
        """Bytes one step reads: the floor of its time."""
        return self.column("read") + self.ring_read

    def to_json(self) -> dict[str, Any]:
        """Totals first, then one row per weight."""
        return {
            "total": self.total.to_json(),
            "weights": self.weights.to_json(),
            **{name: self.column(name).to_json() for name in COLUMNS},
            **{name: getattr(self, name).to_json() for name in _TOTALS},
            "zeroed_blocks": sum(entry.zeroed_blocks for entry in self.entries),
            "tensors": [
                {
                    "name": entry.name,
                    "format": entry.format,
                    **{name: entry.figure(name).to_json() for name in COLUMNS},
                }
                for entry in self.entries
            ],
        }
