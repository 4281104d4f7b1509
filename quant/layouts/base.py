"""What an execution layout is: the same codes and scales, in the order a kernel reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.formats import BlockFormat, block_format
from wmrt.quant.tensor import QuantizedTensor, padded
from wmrt.quant.tensor import layout as canonical

#: Name of each stored tensor to its shape and dtype.
Stored = dict[str, tuple[tuple[int, ...], torch.dtype]]

#: Weights of one row that the CPU and GPU layouts keep together: one 512-bit register of 16 blocks
#: read twice, or 8 lanes of 32.
STEP = 256

# Bytes rearranged at once: a slice and its temporaries stay within a level-2 cache.
_SLICE = 1 << 18


@dataclass(frozen=True)
class Placement:
    """What a layout makes of one weight [N, K].

    * `alignment`: every row begins at a multiple of this many bytes, counted from the start of its
      tensor; how that start is aligned is up to who places it
    * `padded_shape`: rows and columns of codes stored
    * `bytes`: of all tensors together
    * `padding_bytes`: the part of them that is neither a code of [N, K] nor a scale of its blocks
    """

    alignment: int
    padded_shape: tuple[int, int]
    bytes: int
    padding_bytes: int


@dataclass(frozen=True, eq=False)
class LaidOut:
    """A weight [N, K] in an execution layout, as the operators that read it take it.

    `tensors` are those `Layout.stored` names; `global_scale` is 1.0 where the format has none.
    """

    format: str
    shape: tuple[int, int]
    layout: str
    tensors: Mapping[str, Tensor]
    global_scale: float = 1.0


class Layout(ABC):
    """A bijection between `QuantizedTensor` and one order of the same bits, plus fixed padding.

    Padding is fixed in value as well: scales 0, and codes and zero points that mean zero (E2M1 0,
    INT4 8), so that every stored byte is either canonical or known, and reading back refuses
    anything else.
    """

    name: str
    alignment: int
    #: Which formats and shapes it takes, as its error says it.
    rule: str

    @abstractmethod
    def takes(self, spec: BlockFormat) -> bool:
        """Whether weights of format `spec` have this layout."""

    @abstractmethod
    def padded_shape(self, spec: BlockFormat, shape: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of codes stored for a weight [N, K]."""

    @abstractmethod
    def stored(self, spec: BlockFormat, shape: tuple[int, int]) -> Stored:
        """Names, shapes and dtypes of the tensors that hold a weight [N, K]."""

    @abstractmethod
    def lay(self, weight: QuantizedTensor) -> dict[str, Tensor]:
        """The tensors of `stored`, in new memory or as views of the weight's own."""

    @abstractmethod
    def gather(
        self, spec: BlockFormat, shape: tuple[int, int], tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Inverse of `lay`, for tensors of the right shapes; `QuantizationError` for padding that
        is not what `lay` writes."""

    def check(
        self, spec: BlockFormat, shape: tuple[int, int], tensors: Mapping[str, Tensor]
    ) -> None:
        """Refuse values that reading `tensors` back would refuse, for tensors of the right shapes.

        Reads them back; a layout that can tell without says so by an override.
        """
        QuantizedTensor.from_tensors(spec.name, shape, self.gather(spec, shape, tensors))

    def require(self, spec: BlockFormat, shape: tuple[int, int]) -> None:
        """Raise `QuantizationError` unless a weight [N, K] of this format has this layout."""
        canonical(spec, shape)  # refuses a shape that no weight has
        if not self.takes(spec):
            raise QuantizationError(f"layout {self.name} takes {self.rule}; {spec.name} is not")

    def describe(self, format: str, shape: tuple[int, int]) -> Placement:
        """Alignment, padded shape and bytes of a weight [N, K] in `format`."""
        spec = block_format(format)
        self.require(spec, shape)
        rows, columns = shape
        total = stored_bytes(self.stored(spec, shape))
        plain = canonical(spec, shape)
        del plain["codes"]
        own = rows * spec.code_bytes(columns) + stored_bytes(plain)
        return Placement(self.alignment, self.padded_shape(spec, shape), total, total - own)


class Canonical(Layout):
    """`QuantizedTensor` as it is: codes row by row, the even element in the low nibble."""

    name = "canonical"
    alignment = 1
    rule = "every format"

    def takes(self, spec: BlockFormat) -> bool:
        return True

    def padded_shape(self, spec: BlockFormat, shape: tuple[int, int]) -> tuple[int, int]:
        return shape[0], spec.width(shape[1])

    def stored(self, spec: BlockFormat, shape: tuple[int, int]) -> Stored:
        return canonical(spec, shape)

    def lay(self, weight: QuantizedTensor) -> dict[str, Tensor]:
        return weight.tensors()

    def gather(
        self, spec: BlockFormat, shape: tuple[int, int], tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return dict(tensors)


class InSteps(Layout):
    """What the CPU and GPU layouts share: rows padded to whole steps of 256 weights."""

    rule = "4-bit codes with a scale per 16, 32, 64, 128 or 256 weights"

    def takes(self, spec: BlockFormat) -> bool:
        return spec.bits == 4 and spec.block >= 16 and STEP % spec.block == 0

    def padded_shape(self, spec: BlockFormat, shape: tuple[int, int]) -> tuple[int, int]:
        return shape[0], padded(shape[1], STEP)

    def row(self, entries: int, itemsize: int = 1) -> int:
        """Entries of `itemsize` bytes in a stored row that holds `entries`, so that rows are whole
        multiples of `alignment` apart."""
        return padded(entries, self.alignment // itemsize)


def stored_bytes(stored: Stored) -> int:
    """Bytes of the tensors described."""
    sizes = (torch.Size(shape).numel() * dtype.itemsize for shape, dtype in stored.values())
    return sum(sizes)


def slices(rows: int, row_bytes: int) -> Iterator[slice]:
    """Row ranges of about `_SLICE` bytes each."""
    height = max(1, _SLICE // row_bytes)
    return (slice(start, min(start + height, rows)) for start in range(0, rows, height))


def widen(part: Tensor, columns: int, fill: int = 0) -> Tensor:
    """[R, C] -> [R, columns] with `fill` behind; new memory, so every view of it is aligned."""
    return F.pad(part, (0, columns - part.shape[1]), value=fill)


def trim(part: Tensor, columns: int, what: str, fill: int = 0) -> Tensor:
    """Inverse of `widen`: `QuantizationError` if what is cut off is not `fill`."""
    check_padding(part[:, columns:], what, fill)
    return part[:, :columns]


def check_padding(padding: Tensor, what: str, fill: int = 0) -> None:
    """`QuantizationError` unless all of `padding` is `fill`."""
    wrong = padding != fill
    if bool(wrong.any()):
        raise QuantizationError(
            f"the padding of {what} must be {fill:#x} throughout, {int(wrong.sum())} of "
            f"{wrong.numel()} values are not; it was never cleared, or the tensor is damaged"
        )


def per_block(spec: BlockFormat) -> dict[str, int]:
    """The canonical tensors with one entry per block, and what fills them behind a row's end."""
    return {"scales": 0, "zero_points": spec.zero_code} if spec.has_zero_points else {"scales": 0}


def bits(values: Tensor) -> Tensor:
    """float16 as integers, so that padding is judged by its bits; integers as they are."""
    return values.view(torch.int16) if values.is_floating_point() else values


def zero_byte(spec: BlockFormat) -> int:
    """Two codes that mean zero, packed."""
    return spec.zero_code * 0x11
