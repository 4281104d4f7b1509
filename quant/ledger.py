"""Where every byte of a model goes, and how each figure was obtained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.formats import block_format
from wmrt.quant.tensor import QuantizedTensor, layout

How = Literal["measured", "estimated", "missing"]


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
    """The bytes of one weight: codes of real elements, scales, padding codes, or left as it is."""

    name: str
    format: str
    payload: Figure
    scales: Figure
    padding: Figure
    excluded: Figure
    zeroed_blocks: int = 0

    @property
    def total(self) -> Figure:
        return total((self.payload, self.scales, self.padding, self.excluded))


def packed_entry(name: str, weight: QuantizedTensor) -> Entry:
    """The entry of a packed weight, measured from its tensors (estimated if they hold no data)."""
    how: How = "estimated" if weight.codes.is_meta else "measured"
    sizes = {key: t.numel() * t.element_size() for key, t in weight.tensors().items()}
    return _packed(name, weight.format, weight.shape, sizes, how, weight.zeroed_blocks)


def estimated_entry(name: str, format: str, shape: tuple[int, int]) -> Entry:
    """What a weight [N, K] would take in `format`, from the layout alone."""
    sizes = {}
    for key, (size, dtype) in layout(block_format(format), shape).items():
        count = 1
        for length in size:
            count *= length
        sizes[key] = count * dtype.itemsize
    return _packed(name, format, shape, sizes, "estimated", 0)


def _packed(
    name: str, format: str, shape: tuple[int, int], sizes: Mapping[str, int], how: How, zeroed: int
) -> Entry:
    rows, columns = shape
    payload = rows * ((columns + 1) // 2)
    scales = sum(size for key, size in sizes.items() if key != "codes")
    return Entry(
        name,
        format,
        Figure(payload, how),
        Figure(scales, how),
        Figure(sizes["codes"] - payload, how),
        NOTHING,
        zeroed,
    )


def excluded_entry(name: str, tensor: Tensor) -> Entry:
    """The entry of a tensor that no recipe packs."""
    size = tensor.numel() * tensor.element_size()
    figure = Figure(size, "estimated" if tensor.is_meta else "measured")
    kind = str(tensor.dtype).removeprefix("torch.")
    return Entry(name, kind, NOTHING, NOTHING, NOTHING, figure)


@dataclass(frozen=True)
class Ledger:
    """Every weight of a model, and what a session adds: the state ring and the workspace."""

    entries: tuple[Entry, ...]
    ring: Figure = field(default=MISSING)
    workspace: Figure = field(default=MISSING)

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

    def column(self, name: Literal["payload", "scales", "padding", "excluded"]) -> Figure:
        """Total of one column over all weights."""
        return total(getattr(entry, name) for entry in self.entries)

    @property
    def weights(self) -> Figure:
        """Bytes of all weights as stored."""
        return total(entry.total for entry in self.entries)

    @property
    def total(self) -> Figure:
        """Weights, ring and workspace."""
        return total((self.weights, self.ring, self.workspace))

    def to_json(self) -> dict[str, Any]:
        """Totals first, then one row per weight."""
        columns: tuple[Literal["payload", "scales", "padding", "excluded"], ...]
        columns = ("payload", "scales", "padding", "excluded")
        return {
            "total": self.total.to_json(),
            "weights": self.weights.to_json(),
            **{name: self.column(name).to_json() for name in columns},
            "ring": self.ring.to_json(),
            "workspace": self.workspace.to_json(),
            "zeroed_blocks": sum(entry.zeroed_blocks for entry in self.entries),
            "tensors": [
                {
                    "name": entry.name,
                    "format": entry.format,
                    **{name: getattr(entry, name).to_json() for name in columns},
                }
                for entry in self.entries
            ],
        }
