"""Round-to-nearest quantization of a weight matrix to packed codes."""

from __future__ import annotations

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant import block_scales, formats
from wmrt.quant.formats import BlockFormat, block_format
from wmrt.quant.recipe import RECIPES
from wmrt.quant.rules import DEFAULT, Rules
from wmrt.quant.tensor import QuantizedTensor, check_scales, check_zero_points

# E8M0 byte of 2^125: of 4 x 2^126 float32 would make infinity. What exceeds 6 x 2^125 saturates.
MX_LARGEST = 252


def quantize(
    weight: Tensor,
    format: str,
    *,
    scales: Tensor | None = None,
    zero_points: Tensor | None = None,
    global_scale: float | None = None,
    rules: Rules = DEFAULT,
) -> QuantizedTensor:
    """Quantize a float weight [N, K] to `format`, rounding every element to nearest.

    `format` is a weight format (`formats.FORMATS`) or the name of a recipe, which stands for its
    weight format (w4a8 is int4-g128). K is padded with zeros to whole blocks. By the default
    `rules`, which documents every other choice:

    * nvfp4: g = amax / 2688, or 1 for an all-zero tensor; block scale = E4M3(block amax / 6 / g)
    * mxfp4: shared power of two, block amax rounded up to the next one from mantissa 1.75 on, at
      most 2^125
    * int4: float16 scale = amax / 7.5, codes clamped to [-8, 7]; with zero points
      (max - min) / 15 and the code of zero
    * fp8, int8: float32 scale = amax / 448, amax / 127

    Args:
        scales: the block scales, taken as they are, in the format's dtype and shape
            (`BlockFormat.scale_shape`); only the codes are rounded, saturating.
        zero_points: taken as they are too (uint8, 0..15), for formats that have them.
        global_scale: g of nvfp4.

    A block of zeros has scale 0 (mxfp4: the smallest, 2^-127) and zero codes; a row of zeros that
    shares its scale (fp8-tensor) keeps their signs, as in other libraries. A block that is not zero
    but whose elements all round to zero, mostly because its scale underflows, is counted in
    `zeroed_blocks`.

    Raises `QuantizationError` for a weight that is not a finite float matrix, an unknown format, a
    magnitude beyond what an int4 scale (float16) can hold, and scales of the wrong kind.
    """
    spec = block_format(RECIPES[format].weight_format if format in RECIPES else format)
    _check_weight(weight)
    _check_extras(spec, zero_points, global_scale)
    blocks = block_scales.blocks_of(weight, spec)
    amax = block_scales.block_amax(blocks, spec, rules)
    factor = 1.0
    if spec.has_global:
        factor = block_scales.nvfp4_global(amax, global_scale, rules, clip=scales is not None)
    if scales is None:
        scales = _own_scales(blocks, amax, factor, spec, rules)
    else:
        _check_given(scales, spec, (weight.shape[0], weight.shape[1]), "scales", spec.scale_dtype)
        check_scales(spec, scales)
    if spec.has_zero_points and zero_points is None:
        zero_points = block_scales.int4_zero_points(blocks, formats.decode_scales(scales, spec))
    elif zero_points is not None:
        shape = (weight.shape[0], weight.shape[1])
        _check_given(zero_points, spec, shape, "zero_points", torch.uint8)
        check_zero_points(spec, zero_points)
    divisor = block_scales.nvfp4_divisor(amax, factor, rules) if spec.has_global else None
    quotients, empty = _divide(blocks, scales, factor, divisor, spec, rules)
    codes, zeroed = _encode(blocks, quotients, empty, zero_points, spec, rules)
    if spec.bits == 4:
        codes = formats.pack_nibbles(codes)
    rows, columns = weight.shape
    return QuantizedTensor(
        spec.name, (rows, columns), codes, scales, factor, zeroed, zero_points=zero_points
    )


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


def _check_extras(
    spec: BlockFormat, zero_points: Tensor | None, global_scale: float | None
) -> None:
    if global_scale is not None and not spec.has_global:
        raise QuantizationError(f"{spec.name} has no global scale; leave global_scale out")
    if zero_points is not None and not spec.has_zero_points:
        raise QuantizationError(f"{spec.name} has no zero points; leave zero_points out")


def _check_given(
    given: Tensor, spec: BlockFormat, shape: tuple[int, int], what: str, dtype: torch.dtype
) -> None:
    want = spec.scale_shape(shape)
    if tuple(given.shape) != want or given.dtype != dtype:
        raise QuantizationError(
            f"{what} of a {spec.name} weight {list(shape)} must be {dtype} {list(want)}, "
            f"got {given.dtype} {list(given.shape)}"
        )


def _own_scales(
    blocks: Tensor, amax: Tensor, factor: float, spec: BlockFormat, rules: Rules
) -> Tensor:
    """Stored scales by the format's own rule."""
    if spec.scale == "e4m3":
        return block_scales.nvfp4_scales(amax, factor, rules)
    if spec.scale == "e8m0":
        return formats.encode_e8m0(amax, rules.mx_scale).clamp(max=MX_LARGEST)
    if spec.scale == "fp16":
        return block_scales.to_float16(block_scales.int4_scales(blocks, spec, rules))
    return block_scales.row_scales(amax, spec, rules)


def _divide(
    blocks: Tensor,
    scales: Tensor,
    factor: float,
    divisor: Tensor | None,
    spec: BlockFormat,
    rules: Rules,
) -> tuple[Tensor, Tensor]:
    """Elements in units of their block's step, and which blocks [N, K'/block, 1] have step 0."""
    scale = formats.decode_scales(scales, spec).unsqueeze(-1)
    step = scale * factor
    empty = step == 0
    # A zero step would divide to infinity; those blocks become zeros in `_encode`.
    scale, step = scale.masked_fill(empty, 1.0), step.masked_fill(empty, 1.0)
    if divisor is not None and rules.division == "divisor":
        return blocks / (scale / divisor), empty
    if divisor is not None and rules.division == "inverse-first":
        return blocks * _inverse((1.0 / torch.tensor(factor)) / scale), empty
    if rules.by_reciprocal and (divisor is not None or spec.element in ("int4", "int8")):
        return blocks * _inverse(1.0 / step), empty
    return blocks / step, empty


def _inverse(quotient: Tensor) -> Tensor:
    """A reciprocal kept finite: infinity times an element that is 0 would be NaN."""
    largest = torch.finfo(torch.float32).max
    return quotient.clamp(-largest, largest)


def _encode(
    blocks: Tensor,
    quotients: Tensor,
    empty: Tensor,
    zero_points: Tensor | None,
    spec: BlockFormat,
    rules: Rules,
) -> tuple[Tensor, int]:
    """Codes uint8[N, K'], one an element, and how many blocks lost everything they held."""
    if spec.element == "e2m1":
        codes = formats.encode_e2m1(quotients, "even" if spec.has_global else rules.mx_ties)
    elif spec.element == "e4m3":
        codes = formats.encode_e4m3(quotients)
    elif spec.element == "int8":
        codes = formats.encode_int8(quotients, -127 if rules.int8_scale == "amax/127" else -128)
    else:
        shift = 0.0 if zero_points is None else zero_points.float().unsqueeze(-1) - 8.0
        codes = formats.encode_int4(quotients + shift, rules.int4_ties)
    zero = spec.zero_code if zero_points is None else zero_points.unsqueeze(-1)
    held = (blocks != 0).any(-1, keepdim=True)
    # A row of zeros under a scale of the whole tensor is no block of its own: -0 stays -0 there.
    codes = torch.where(empty | ~(held.any() if spec.per_tensor else held), zero, codes)
    # The sign of a floating zero carries nothing.
    size = codes & (0x7 if spec.element == "e2m1" else 0x7F if spec.element == "e4m3" else 0xFF)
    gone = held & (size == zero).all(-1, keepdim=True)
    return codes.flatten(-2), int(gone.sum())
