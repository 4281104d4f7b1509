"""Native linear operators: `LinearOp`s of implementation ``native``, computed by the caller alone.

Numerics are those of `wmrt.kernels.reference`; the sum over blocks has an order of its own, which
depends on nothing but K: a row of x gives the same bits in every batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError, UnsupportedError
from wmrt.kernels.native import library as native
from wmrt.kernels.reference import checked
from wmrt.kernels.registry import register
from wmrt.quant.layouts import LaidOut

LAYOUT = "cpu_interleaved"
#: Rows of x that one call of the library takes.
BATCH = 16


def multiply(
    x: Tensor,
    rows: Tensor,
    shape: tuple[int, int],
    format: str,
    activation: str,
    global_scale: float = 1.0,
) -> Tensor:
    """float[..., K] times stored rows of a matrix [N, K] -> float32[..., N].

    `rows` is what the library reads, one row after the other: uint8[N, stride] in layout
    ``cpu_interleaved``, or a bfloat16 or float32 matrix. `QuantizationError` for an x of another
    width; `UnsupportedError` for what is not in this processor's memory, for a pair of format and
    activation without a kernel, and where the library cannot be had.
    """
    flat = _here(checked(x, shape[1])).to(torch.float32).contiguous()
    rows = _here(rows)
    if rows.stride(1) != 1:
        raise QuantizationError(f"a weight's rows must lie without gaps, got {rows.stride()}")
    library = native.library()
    number, kind = native.FORMATS[format], native.ACTIVATIONS[activation]
    matrix = native.Matrix(
        rows.data_ptr(),
        None,
        rows.stride(0) * rows.element_size(),
        *shape,
        number,
        kind,
        global_scale,
    )
    out = flat.new_empty(len(flat), shape[0])
    each = library.wmrt_prepared_bytes(number, kind, shape[1])
    work = torch.empty(min(len(flat), BATCH) * each, dtype=torch.uint8)
    isa = native.isa().number
    for start in range(0, len(flat), BATCH):
        part, to = flat[start : start + BATCH], out[start : start + BATCH]
        code = library.wmrt_linear(
            isa,
            None,
            ctypes.byref(matrix),
            part.data_ptr(),
            len(part),
            work.data_ptr(),
            to.data_ptr(),
        )
        native.check(code, f"{format} {list(shape)} with {activation} activations")
    return out.view(*x.shape[:-1], shape[0])


def _here(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cpu":
        raise UnsupportedError(
            f"a native linear reads this processor's memory, got a tensor on {tensor.device}; "
            "move the model with .to('cpu')"
        )
    return tensor


def _packed(activation: str) -> Callable[[Tensor, LaidOut], Tensor]:
    """The operator for packed weights with these activations."""

    def linear_packed(x: Tensor, weight: LaidOut) -> Tensor:
        """float[..., K] times packed [N, K] -> float32[..., N]."""
        if not isinstance(weight, LaidOut) or weight.layout != LAYOUT:
            given = getattr(weight, "layout", type(weight).__name__)
            raise QuantizationError(
                f"this linear reads weights in layout {LAYOUT}, got {given}; see "
                "wmrt.quant.layouts.to_layout"
            )
        rows = weight.tensors["interleaved"]
        return multiply(x, rows, weight.shape, weight.format, activation, weight.global_scale)

    return linear_packed


for _format in ("nvfp4", "mxfp4", "int4-g128"):
    register(_format, "int8-g32", "native", layout=LAYOUT)(_packed("int8-g32"))
for _format in ("nvfp4", "mxfp4"):
    register(_format, "bf16", "native", layout=LAYOUT)(_packed("bf16"))


@register("bf16", "bf16", "native")
def linear_bf16(x: Tensor, weight: Tensor) -> Tensor:
    """float[..., K] rounded to bfloat16, times bfloat16 [N, K] -> float32[..., N]."""
    return multiply(x, weight, (weight.shape[0], weight.shape[1]), "bf16", "bf16")
