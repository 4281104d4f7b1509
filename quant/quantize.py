"""Round-to-nearest quantization of a weight matrix to packed 4-bit codes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant import formats
from wmrt.quant.formats import BlockFormat, block_format
from wmrt.quant.recipe import RECIPES
from wmrt.quant.tensor import QuantizedTensor, padded

# Below this the quotient amax / 2688 would be subnormal and lose bits, or zero.
SMALLEST_GLOBAL = torch.finfo(torch.float32).tiny


def quantize(
    weight: Tensor,
    format: str,
    *,
    mx_rule: str = "even",
    global_scale: float | None = None,
) -> QuantizedTensor:
    """Quantize a float weight [N, K] to `format`, rounding every element to nearest even.

    `format` is a weight format (nvfp4, mxfp4, int4-g128) or the name of a recipe, which stands for
    its weight format (w4a8 is int4-g128). K is padded with zeros to whole blocks.

    * nvfp4: block 16; g = amax / 2688, or 1 for an all-zero tensor, unless `global_scale` gives it;
      block scale = E4M3(block amax / 6 / g)
    * mxfp4: block 32; shared power of two by `mx_rule` (`formats.encode_e8m0`)
    * int4-g128: block 128; float16 scale = amax / 7.5, codes clamped to [-8, 7]

    Raises `QuantizationError` for a weight that is not a finite float matrix, an unknown format, or
    a magnitude beyond what an int4 scale (float16) can hold.
    """
    spec = block_format(RECIPES[format].weight_format if format in RECIPES else format)
    _check_weight(weight)
    if global_scale is not None and not spec.has_global:
        raise QuantizationError(f"{spec.name} has no global scale; leave global_scale out")
    rows, columns = weight.shape
    wide = weight.detach().to(torch.float32)
    if columns % spec.block:
        wide = F.pad(wide, (0, padded(columns, spec.block) - columns))
    blocks = formats.split(wide, spec.block)
    amax = blocks.abs().amax(-1)
    factor = 1.0
    if spec.scale == "e4m3":
        factor = _global_scale(amax, global_scale)
        scales = formats.encode_e4m3(amax / (6.0 * factor))
    elif spec.scale == "e8m0":
        scales = formats.encode_e8m0(amax, mx_rule)
    else:
        scales = _fp16_scales(amax)
    codes, zeroed = _encode(blocks, amax, scales, factor, spec)
    packed = formats.pack_nibbles(codes.flatten(-2))
    return QuantizedTensor(spec.name, (rows, columns), packed, scales, factor, zeroed)


def _check_weight(weight: Tensor) -> None:
    if weight.ndim != 2 or not weight.is_floating_point() or weight.numel() == 0:
        raise QuantizationError(
            f"a weight must be a float matrix [N, K], got {weight.dtype} {list(weight.shape)}"
        )
    bad = ~torch.isfinite(weight)
    if bool(bad.any()):
        row, column = (int(i) for i in bad.nonzero()[0])
        raise QuantizationError(
            f"the weight has {int(bad.sum())} elements that are NaN or infinite, the first at "
            f"[{row}, {column}]; repair the weight, it is not rounded to something finite"
        )


def _global_scale(amax: Tensor, given: float | None) -> float:
    largest = amax.max()
    if given is not None:
        factor = float(torch.tensor(given, dtype=torch.float32))
        if not 0.0 < factor < float("inf"):
            raise QuantizationError(f"global_scale must be positive and finite, got {given}")
        if float(largest) > formats.NVFP4_SPAN * factor * (1.0 + 2.0**-20):
            raise QuantizationError(
                f"global_scale {given} reaches {formats.NVFP4_SPAN * factor:g}; "
                f"the weight reaches {float(largest):g} and would be clipped"
            )
        return factor
    if float(largest) == 0.0:
        return 1.0
    return max(float(largest / formats.NVFP4_SPAN), SMALLEST_GLOBAL)


def _fp16_scales(amax: Tensor) -> Tensor:
    scales = (amax / 7.5).to(torch.float16)
    if not bool(torch.isfinite(scales).all()):
        raise QuantizationError(
            f"an int4 scale is float16: amax / 7.5 is at most 65504, amax is {float(amax.max())}"
        )
    return scales


def _encode(
    blocks: Tensor, amax: Tensor, scales: Tensor, factor: float, spec: BlockFormat
) -> tuple[Tensor, int]:
    """Codes [N, blocks, block] under the stored scales, and how many blocks underflowed."""
    step = formats.decode_scales(scales, spec) * factor
    empty = (step == 0) | (amax == 0)
    # A zero step would divide to infinity; those blocks are written as zeros below.
    scaled = blocks / step.masked_fill(empty, 1.0).unsqueeze(-1)
    encode = formats.encode_int4 if spec.scale == "fp16" else formats.encode_e2m1
    codes = encode(scaled).masked_fill(empty.unsqueeze(-1), spec.zero_code)
    return codes, int((empty & (amax > 0)).sum())
