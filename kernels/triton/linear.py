"""Linear operators of implementation ``triton``, and the torch operators under them.

``torch.ops.wmrt``: `quantize_int8_g32`, `gemv_nvfp4`, `gemv_mxfp4`, `gemv_w4a8` and, as control
arms with bfloat16 activations, `gemv_nvfp4_a16`, `gemv_mxfp4_a16`. On the CPU they compute by
`wmrt.kernels.reference`, on CUDA by triton; triton is imported when one first runs there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError, UnsupportedError
from wmrt.kernels import reference
from wmrt.kernels.registry import register
from wmrt.kernels.triton import checks_ops, library
from wmrt.kernels.triton.variants import Variant, variant
from wmrt.quant.activations import GROUP, quantize_groups
from wmrt.quant.formats import block_format
from wmrt.quant.layouts import LaidOut
from wmrt.quant.layouts.gpu import GpuGemv
from wmrt.quant.tensor import QuantizedTensor

LAYOUT = GpuGemv.name
INT4 = {f"int4-g{group}": group for group in (128, 64, 32)}

#: Schemas. x and codes are [B, .], words and lane_scales as layout ``gpu_gemv`` stores them.
_SCHEMAS = (
    "quantize_int8_g32(Tensor x, int width) -> (Tensor, Tensor)",
    "gemv_nvfp4(Tensor codes, Tensor factors, Tensor words, Tensor lane_scales, "
    "float global_scale) -> Tensor",
    "gemv_mxfp4(Tensor codes, Tensor factors, Tensor words, Tensor lane_scales) -> Tensor",
    "gemv_w4a8(Tensor codes, Tensor factors, Tensor words, Tensor lane_scales, "
    "int group) -> Tensor",
    "gemv_nvfp4_a16(Tensor x, Tensor words, Tensor lane_scales, float global_scale) -> Tensor",
    "gemv_mxfp4_a16(Tensor x, Tensor words, Tensor lane_scales) -> Tensor",
)
_LIBRARY: Any = cast(Any, torch.library).Library("wmrt", "FRAGMENT")  # its methods have no types

#: (x or codes, factors or None, words, lane_scales, format, global scale) -> float32[B, N].
_Multiply = Callable[[Tensor, Tensor | None, Tensor, Tensor, str, float], Tensor]


def weight_of(words: Tensor, scales: Tensor, format: str, factor: float) -> QuantizedTensor:
    """The weight as it was before it was laid out, padding of its rows included."""
    shape = (words.shape[0], words.shape[1] * 8)
    stored = {"words": words, "lane_scales": scales}
    found = GpuGemv().gather(block_format(format), shape, stored)
    return QuantizedTensor(format, shape, found["codes"], found["scales"], factor)


def _on_cpu(
    x: Tensor, factors: Tensor | None, words: Tensor, scales: Tensor, format: str, factor: float
) -> Tensor:
    checks_ops.product(x, factors, words, scales, format)
    weight = weight_of(words, scales, format, factor)
    if factors is not None:
        return reference.dots_a8(x.float(), factors, weight)
    wide = torch.nn.functional.pad(x, (0, weight.shape[1] - x.shape[1]))
    return reference.linear_a16(wide, weight)


def _on_cuda(
    x: Tensor, factors: Tensor | None, words: Tensor, scales: Tensor, format: str, factor: float
) -> Tensor:
    from wmrt.kernels.triton import activations, gemv

    how = chosen(x.device)
    with torch.cuda.device(x.device):
        if factors is None:
            checks_ops.product(x, factors, words, scales, format)
            x = activations.lane_floats(x, words.shape[1] * 8)
        return gemv.multiply(x, factors, words, scales, format, factor, how)


def _on_meta(
    x: Tensor, factors: Tensor | None, words: Tensor, scales: Tensor, format: str, factor: float
) -> Tensor:
    checks_ops.product(x, factors, words, scales, format)
    return x.new_empty(x.shape[0], words.shape[0], dtype=torch.float32)


_capability = functools.cache(library.require_kernels)


def chosen(device: torch.device) -> Variant:
    """The form of the kernels for a CUDA device; errors as `library.require_kernels` and
    `variant`."""
    return variant(_capability(device))


def _quantize_on_cpu(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    checks_ops.quantized(x, width)
    codes, factors = quantize_groups(x.float(), padded_to=width)
    return codes.to(torch.int8), factors


def _quantize_on_cuda(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    from wmrt.kernels.triton import activations

    chosen(x.device)
    with torch.cuda.device(x.device):
        return activations.int8_codes(x, width)


def _quantize_on_meta(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    checks_ops.quantized(x, width)
    rows = x.shape[0]
    return x.new_empty(rows, width, dtype=torch.int8), x.new_empty(
        rows, width // GROUP, dtype=torch.float32
    )


def _define() -> None:
    for schema in _SCHEMAS:
        _LIBRARY.define(schema)
    for key, quantize, multiply in (
        ("CPU", _quantize_on_cpu, _on_cpu),
        ("CUDA", _quantize_on_cuda, _on_cuda),
        ("Meta", _quantize_on_meta, _on_meta),
    ):
        _LIBRARY.impl("quantize_int8_g32", quantize, key)
        for name, function in _forms(multiply).items():
            _LIBRARY.impl(name, function, key)


def _forms(multiply: _Multiply) -> dict[str, Callable[..., Tensor]]:
    """`multiply` with the arguments of each operator's schema."""

    def w4a8(codes: Tensor, factors: Tensor, words: Tensor, scales: Tensor, group: int) -> Tensor:
        return multiply(codes, factors, words, scales, f"int4-g{group}", 1.0)

    return {
        "gemv_nvfp4": lambda x, f, w, s, g: multiply(x, f, w, s, "nvfp4", g),
        "gemv_mxfp4": lambda x, f, w, s: multiply(x, f, w, s, "mxfp4", 1.0),
        "gemv_w4a8": w4a8,
        "gemv_nvfp4_a16": lambda x, w, s, g: multiply(x, None, w, s, "nvfp4", g),
        "gemv_mxfp4_a16": lambda x, w, s: multiply(x, None, w, s, "mxfp4", 1.0),
    }


_define()


def _ready(x: Tensor, weight: LaidOut) -> Tensor:
    """x[..., K] as [B, K]; an error for whatever keeps the kernels from running."""
    if not isinstance(weight, LaidOut) or weight.layout != LAYOUT:
        given = getattr(weight, "layout", type(weight).__name__)
        raise QuantizationError(
            f"this linear reads weights in layout {LAYOUT}, got {given}; see "
            "wmrt.quant.layouts.to_layout"
        )
    flat = reference.checked(x, weight.shape[1])
    require_on_cuda(flat, weight.tensors["words"])
    return flat


def require_on_cuda(*tensors: Tensor) -> None:
    """Raise `UnsupportedError` for the first that is elsewhere, with what to do."""
    for tensor in tensors:
        if tensor.device.type != "cuda":
            library.require_kernels()
            raise UnsupportedError(
                f"a triton linear runs on a CUDA device, got a tensor on {tensor.device}; move "
                "the model and its inputs with .to('cuda'), or take implementation native"
            )


def _linear(format: str, activation: str) -> Callable[[Tensor, LaidOut], Tensor]:
    """The operator for packed weights with these activations."""
    ops = torch.ops.wmrt

    def linear_triton(x: Tensor, weight: LaidOut) -> Tensor:
        """float[..., K] times packed [N, K] -> float32[..., N], on a CUDA device."""
        flat = _ready(x, weight)
        words, scales = weight.tensors["words"], weight.tensors["lane_scales"]
        more = [weight.global_scale] if format == "nvfp4" else []
        if activation == "bf16":
            name = f"gemv_{format}_a16"
            y = getattr(ops, name).default(flat, words, scales, *more)
        else:
            given = ops.quantize_int8_g32.default(flat, words.shape[1] * 8)
            name = "gemv_w4a8" if format in INT4 else f"gemv_{format}"
            more += [INT4[format]] if format in INT4 else []
            y = getattr(ops, name).default(*given, words, scales, *more)
        result: Tensor = y.view(*x.shape[:-1], weight.shape[0])
        return result

    return linear_triton


for _format in ("nvfp4", "mxfp4", *INT4):
    register(_format, "int8-g32", "triton", layout=LAYOUT)(_linear(_format, "int8-g32"))
for _format in ("nvfp4", "mxfp4"):
    register(_format, "bf16", "triton", layout=LAYOUT)(_linear(_format, "bf16"))
