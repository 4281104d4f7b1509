"""Execution layouts: one weight, the same bits, in the order a kernel reads them.

Every layout is a bijection with `QuantizedTensor` (the canonical one) plus padding of a fixed
value. A checkpoint stores its packed weights in one of them and names it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.formats import block_format
from wmrt.quant.layouts.base import Canonical, LaidOut, Layout, Placement, Stored, stored_bytes
from wmrt.quant.layouts.cpu import CpuInterleaved
from wmrt.quant.layouts.gpu import GpuGemv
from wmrt.quant.layouts.tiles import CublasTiles, swizzle, unswizzle
from wmrt.quant.tensor import QuantizedTensor, global_factor

__all__ = [
    "LAYOUTS",
    "LaidOut",
    "Layout",
    "Placement",
    "from_layout",
    "get_layout",
    "laid_out",
    "stored",
    "stored_bytes",
    "swizzle",
    "to_layout",
    "unswizzle",
]

LAYOUTS: dict[str, Layout] = {
    layout.name: layout for layout in (Canonical(), GpuGemv(), CublasTiles(), CpuInterleaved())
}


def get_layout(name: str) -> Layout:
    """The layout called `name`; `QuantizationError` lists the names that exist."""
    if name not in LAYOUTS:
        raise QuantizationError(f"unknown layout {name!r}; layouts are {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def stored(name: str, format: str, shape: tuple[int, int]) -> Stored:
    """Shape and dtype of every tensor that holds a weight [N, K] of `format` in layout `name`.

    `QuantizationError` names the rule when the layout does not take that format or shape.
    """
    spec = block_format(format)
    layout = get_layout(name)
    layout.require(spec, shape)
    return layout.stored(spec, shape)


def to_layout(weight: QuantizedTensor, name: str) -> dict[str, Tensor]:
    """The weight in layout `name`: the tensors `stored` names. Parts that are the same in both may
    be views of the weight's own; takes no more memory beyond the result than a slice of rows."""
    layout = get_layout(name)
    layout.require(weight.spec, weight.shape)
    return layout.lay(weight)


def from_layout(
    format: str, shape: tuple[int, int], name: str, tensors: Mapping[str, Tensor]
) -> QuantizedTensor:
    """Inverse of `to_layout`, refusing anything it would not have written.

    Raises `QuantizationError` for a missing or unexpected name, a wrong shape or dtype, padding
    that is not what the layout writes, and whatever `QuantizedTensor.from_tensors` refuses.
    """
    expected = stored(name, format, shape)
    _check(name, format, shape, expected, tensors)
    canonical = get_layout(name).gather(block_format(format), shape, tensors)
    return QuantizedTensor.from_tensors(format, shape, canonical)


def laid_out(
    format: str, shape: tuple[int, int], name: str, tensors: Mapping[str, Tensor]
) -> LaidOut:
    """The weight as operators of layout `name` take it: `tensors` themselves, nothing is moved.

    Refuses what `from_layout` refuses.
    """
    _check(name, format, shape, stored(name, format, shape), tensors)
    spec = block_format(format)
    factor = global_factor(spec, tensors)
    get_layout(name).check(spec, shape, tensors)
    return LaidOut(format, shape, name, tensors, factor)


def _check(
    name: str,
    format: str,
    shape: tuple[int, int],
    expected: Stored,
    tensors: Mapping[str, Tensor],
) -> None:
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected)
    if missing or extra:
        raise QuantizationError(
            f"{format} in layout {name} is stored as {', '.join(expected)}; "
            f"missing: {', '.join(missing) or 'none'}, unexpected: {', '.join(extra) or 'none'}"
        )
    for key, (size, dtype) in expected.items():
        got = tensors[key]
        if tuple(got.shape) != size or got.dtype != dtype:
            raise QuantizationError(
                f"{key} of a weight {list(shape)}, {format} in layout {name}, must be {dtype} "
                f"{list(size)}, got {got.dtype} {list(got.shape)}"
            )
