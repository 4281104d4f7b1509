"""One weight between our form and the tensors of a compressed-tensors file.

For a weight [N, K] such a file holds, after the module's name:

* nvfp4: ``weight_packed`` uint8 [N, K/2], ``weight_scale`` float8_e4m3fn [N, K/16],
  ``weight_global_scale`` float32 [1]: the **divisor** 2688 / amax, where ours is the multiplier
* mxfp4: ``weight_packed``, ``weight_scale`` uint8 [N, K/32]
* int4: ``weight_packed`` int32 [N, ceil(K/8)], eight codes q + 8 a word, the first lowest;
  ``weight_scale`` [N, K/g] in the model's dtype; ``weight_shape`` int64 [2];
  with zero points ``weight_zero_point`` int32 [ceil(N/8), K/g], eight rows a word

A reciprocal in float32 is not always undone by another: 12% of random divisors and 17% of random
multipliers come back one ulp off. So an `Origin` keeps the divisor a weight was read with, and a
file of ours records beside it the multipliers that its divisors miss (`folder.MULTIPLIERS`).

A block of zeros has scale 0.125 there and 0 with us. Either is read and kept; both are zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wmrt.core.errors import QuantizationError
from wmrt.quant.formats import BlockFormat, block_format, pack_nibbles, unpack_nibbles
from wmrt.quant.tensor import QuantizedTensor

PACKED, SCALE, GLOBAL = "weight_packed", "weight_scale", "weight_global_scale"
SHAPE, ZERO_POINT = "weight_shape", "weight_zero_point"
PARTS = (PACKED, SCALE, GLOBAL, SHAPE, ZERO_POINT, "weight_g_idx")
_SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Origin:
    """What a file said of a weight in other bits than ours: writing it again restores them.

    * `divisor`: its float32 ``weight_global_scale`` (nvfp4)
    * `scales`: its scales, where they are not float16 (int4)
    """

    divisor: float | None = None
    scales: Tensor | None = None


def part_names(spec: BlockFormat) -> tuple[str, ...]:
    """The tensors that hold a weight of the format, without the module's name."""
    names = [PACKED, SCALE]
    names += [GLOBAL] if spec.has_global else []
    names += [SHAPE] if spec.element == "int4" else []
    names += [ZERO_POINT] if spec.has_zero_points else []
    return tuple(names)


def multiplier_of(divisor: float) -> float:
    """Our float32 global scale of a stored float32 divisor.

    Raises `QuantizationError` unless both are positive and finite.
    """
    if not 0.0 < divisor < float("inf"):
        raise QuantizationError(f"{GLOBAL} must be positive and finite, got {divisor}")
    # The quotient in float64, rounded to float32, is the correctly rounded float32 quotient.
    multiplier = float(torch.tensor(1.0 / divisor, dtype=torch.float32))
    if multiplier in (0.0, float("inf")):
        raise QuantizationError(f"{GLOBAL} {divisor} has no float32 reciprocal")
    return multiplier


divisor_of = multiplier_of  # the same arithmetic the other way


def from_parts(
    format: str,
    parts: Mapping[str, Tensor],
    *,
    round_scales: bool = False,
    multiplier: float | None = None,
) -> tuple[QuantizedTensor, Origin]:
    """The weight that `parts` (exactly `part_names`) hold.

    Codes and scales are taken bit for bit. int4 scales are float16 with us: where the stored ones
    are no float16 values, `round_scales` takes the nearest and without it they are refused.
    `multiplier` is the recorded inverse of the divisor and counts only where it is that.

    Raises `QuantizationError` for wrong shapes and dtypes and for values that cannot be meant.
    """
    spec = block_format(format)
    packed, scale = parts[PACKED], parts[SCALE]
    int4 = spec.element == "int4"
    _need(PACKED, packed, torch.int32 if int4 else torch.uint8, 2)
    shape = (packed.shape[0], packed.shape[1] * 2)
    if int4:
        shape = _true_shape(parts[SHAPE], packed)
    _need_shape(SCALE, scale, spec.scale_shape(shape))
    tensors: dict[str, Tensor] = {}
    origin = Origin()
    if int4:
        tensors["scales"] = _half(scale, round_scales)
        origin = Origin(scales=None if scale.dtype == torch.float16 else scale)
    elif spec.has_global:
        divisor = _single(parts[GLOBAL])
        factor = multiplier_of(divisor)
        if multiplier is not None and divisor_of(multiplier) == divisor:
            factor = multiplier
        tensors["global_scale"] = torch.tensor(factor, dtype=torch.float32)
        tensors["scales"] = _need(SCALE, scale, torch.float8_e4m3fn, 2).view(torch.uint8)
        origin = Origin(divisor=divisor)
    else:
        tensors["scales"] = _need(SCALE, scale, torch.uint8, 2)
    if spec.has_zero_points:
        tensors["zero_points"] = _unpack_rows(parts[ZERO_POINT], spec.scale_shape(shape))
    tensors["codes"] = _widen(packed.view(torch.uint8), shape[1], spec, tensors.get("zero_points"))
    return QuantizedTensor.from_tensors(format, shape, tensors), origin


def to_parts(q: QuantizedTensor, origin: Origin | None = None) -> dict[str, Tensor]:
    """The tensors that hold `q`; inverse of `from_parts`.

    What `origin` remembers is written where it still means the same: a divisor whose inverse is
    q's global scale, scales whose float16 values are q's. Tails are written without their padding.
    Raises `QuantizationError` for an odd number of columns in formats of two codes a byte.
    """
    spec, (rows, columns) = q.spec, q.shape
    if spec.element == "int4":
        parts = {PACKED: _words(unpack_nibbles(q.codes)[:, :columns]), SCALE: q.scales}
        parts[SHAPE] = torch.tensor([rows, columns], dtype=torch.int64)
        kept = None if origin is None else origin.scales
        if kept is not None and torch.equal(kept.to(torch.float16), q.scales):
            parts[SCALE] = kept
        if q.zero_points is not None:
            parts[ZERO_POINT] = _words(q.zero_points.t()).t()
    elif columns % 2:
        raise QuantizationError(
            f"{q.format} files hold two codes a byte and no shape; {columns} columns are odd"
        )
    elif spec.has_global:
        divisor = divisor_of(q.global_scale)
        kept_divisor = None if origin is None else origin.divisor
        if kept_divisor is not None and multiplier_of(kept_divisor) == q.global_scale:
            divisor = kept_divisor
        parts = {
            PACKED: q.codes[:, : columns // 2],
            SCALE: q.scales.view(torch.float8_e4m3fn),
            GLOBAL: torch.tensor([divisor], dtype=torch.float32),
        }
    else:
        parts = {PACKED: q.codes[:, : columns // 2], SCALE: q.scales}
    return {name: tensor.cpu().contiguous() for name, tensor in parts.items()}


def _need(name: str, tensor: Tensor, dtype: torch.dtype, dims: int) -> Tensor:
    if tensor.dtype != dtype or tensor.ndim != dims:
        raise QuantizationError(
            f"{name} must be {dtype} with {dims} dimensions, "
            f"got {tensor.dtype} {list(tensor.shape)}"
        )
    return tensor


def _need_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise QuantizationError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")


def _single(value: Tensor) -> float:
    if value.dtype != torch.float32 or value.numel() != 1:
        raise QuantizationError(
            f"{GLOBAL} must be one float32, got {value.dtype} {list(value.shape)}; a matrix fused "
            "from several needs one of its own (`fuse`)"
        )
    return float(value)


def _true_shape(stored: Tensor, packed: Tensor) -> tuple[int, int]:
    _need(SHAPE, stored, torch.int64, 1)
    _need_shape(SHAPE, stored, (2,))
    rows, columns = (int(size) for size in stored)
    if rows < 1 or columns < 1 or tuple(packed.shape) != (rows, -(-columns // 8)):
        raise QuantizationError(
            f"{SHAPE} says {[rows, columns]}, which eight codes a word do not fill: {PACKED} is "
            f"{list(packed.shape)}"
        )
    return rows, columns


def _half(scale: Tensor, rounded: bool) -> Tensor:
    if scale.dtype not in _SCALE_DTYPES:
        allowed = ", ".join(map(str, _SCALE_DTYPES))
        raise QuantizationError(f"{SCALE} must be one of {allowed}, got {scale.dtype}")
    half = scale.to(torch.float16)
    lost = (half.float() != scale.float()) & torch.isfinite(scale)
    if bool(lost.any()) and not rounded:
        change = ((half.float() - scale.float()) / scale.float()).abs()[lost].max()
        raise QuantizationError(
            f"{int(lost.sum())} of {lost.numel()} {SCALE} ({scale.dtype}) are no float16 values, "
            f"as int4 scales are here; ask for rounding (round_scales) to take the nearest, at "
            f"most {float(change):.2g} of a scale away"
        )
    return half


def _widen(packed: Tensor, columns: int, spec: BlockFormat, zero_points: Tensor | None) -> Tensor:
    """Stored bytes of `columns` codes a row -> ours, filled up to whole blocks with zeros."""
    width = spec.width(columns)
    if width == columns and packed.shape[1] * 2 == columns:
        return packed
    codes = unpack_nibbles(packed)[:, :columns]
    if zero_points is None:
        codes = F.pad(codes, (0, width - columns), value=spec.zero_code)
    else:
        codes = torch.cat((codes, zero_points[:, -1:].expand(-1, width - columns)), -1)
    return pack_nibbles(codes)


def _words(codes: Tensor) -> Tensor:
    """uint8[N, K] of 4-bit codes -> int32[N, ceil(K / 8)]; the last word's rest is 0, as that
    library leaves it."""
    return _compact(pack_nibbles(F.pad(codes, (0, -codes.shape[1] % 8)))).view(torch.int32)


def _compact(matrix: Tensor) -> Tensor:
    """A copy whose strides are those of its shape. `contiguous` leaves a column of several rows, as
    a transposed row is one, with a stride that `view` refuses."""
    return matrix.clone(memory_format=torch.contiguous_format)


def _unpack_rows(words: Tensor, shape: tuple[int, int]) -> Tensor:
    """int32[ceil(N / 8), G] -> uint8[N, G]: a word holds eight rows of a column.

    That library lacks the copy: for N <= 8 and G > 1 its own reader raises.
    """
    _need(ZERO_POINT, words, torch.int32, 2)
    rows, groups = shape
    _need_shape(ZERO_POINT, words, (-(-rows // 8), groups))
    across = _compact(words.t()).view(torch.uint8)
    return unpack_nibbles(across)[:, :rows].t().contiguous()
