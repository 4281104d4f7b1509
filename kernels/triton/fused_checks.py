"""What the fused matrix operators take, checked before anything runs. No triton here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError, UnsupportedError, UsageError
from wmrt.kernels.triton.plans import BATCH, gate_up_work, qkv_work
from wmrt.quant.activations import GROUP
from wmrt.quant.formats import block_format
from wmrt.quant.layouts.base import STEP
from wmrt.quant.layouts.gpu import GpuGemv

#: Formats of their weights.
FORMATS = ("nvfp4", "mxfp4", "int4-g128", "int4-g64", "int4-g32")


@dataclass(frozen=True)
class Matrix:
    """A weight [N, K] in layout ``gpu_gemv``: its two tensors, its format, its global scale."""

    words: Tensor
    lane_scales: Tensor
    format: str
    global_scale: float

    @property
    def rows(self) -> int:
        """N."""
        return self.words.shape[0]

    @property
    def columns(self) -> int:
        """K, padded to whole steps of 256."""
        return self.words.shape[1] * 8


def expect(name: str, given: Tensor, dtype: torch.dtype, *shape: int) -> None:
    """`UsageError` unless `given` is contiguous, of this type and shape."""
    if given.dtype != dtype or tuple(given.shape) != shape or not given.is_contiguous():
        strides = "" if given.is_contiguous() else f" with strides {list(given.stride())}"
        raise UsageError(
            f"{name} is {given.dtype} {list(given.shape)}{strides}; it has to be {dtype} "
            f"{list(shape)}, contiguous"
        )


def check_matrix(matrix: Matrix) -> None:
    """Raises:
    UnsupportedError: a format without kernels, or more words than 32-bit offsets reach.
    QuantizationError: tensors that layout ``gpu_gemv`` does not store.
    """
    words, scales, format = matrix.words, matrix.lane_scales, matrix.format
    if format not in FORMATS:
        raise UnsupportedError(f"no fused kernels for {format!r}; there are: {', '.join(FORMATS)}")
    if words.dim() != 2 or words.dtype != torch.int32 or words.shape[1] * 8 % STEP:
        raise QuantizationError(
            f"words are {words.dtype} {list(words.shape)}; layout {GpuGemv.name} has int32 "
            f"[N, K / 8] with K a multiple of {STEP}; see wmrt.quant.layouts.to_layout"
        )
    stored = GpuGemv().stored(block_format(format), (matrix.rows, matrix.columns))
    shape, dtype = stored["lane_scales"]
    if scales.dtype != dtype or tuple(scales.shape) != shape:
        raise QuantizationError(
            f"lane_scales are {scales.dtype} {list(scales.shape)}; {format} of "
            f"[{matrix.rows}, {matrix.columns}] has {dtype} {list(shape)} in {GpuGemv.name}"
        )
    if not words.is_contiguous() or not scales.is_contiguous():
        raise QuantizationError("words and lane_scales must be contiguous; copy them with .clone()")
    if words.numel() >= 2**31:
        raise UnsupportedError(
            f"a weight of {words.numel()} words is too large for 32-bit offsets; split its rows"
        )


def _vectors(name: str, given: Tensor) -> int:
    """B of `given` [B, ..]; `UsageError` if it is none of 1 to 16."""
    if given.dim() < 2 or not 1 <= given.shape[0] <= BATCH:
        raise UsageError(f"{name} is {list(given.shape)}; of 1 to {BATCH} vectors it is [B, ..]")
    return given.shape[0]


def _normed(x: Tensor, norm: Tensor, matrix: Matrix) -> int:
    """B of x [B, d], which fits `norm` and the matrix."""
    check_matrix(matrix)
    batch = _vectors("x", x)
    width = x.shape[-1]
    if not matrix.columns - STEP < width <= matrix.columns:
        raise UsageError(
            f"x is {list(x.shape)}; a matrix of {matrix.columns} columns takes "
            f"[B, {matrix.columns - STEP + 1}] to [B, {matrix.columns}]"
        )
    expect("x", x, torch.float32, batch, width)
    expect("norm", norm, torch.float32, width)
    return batch


def _scratch(work: Tensor, size: int, how: str) -> None:
    if work.dtype != torch.int8 or work.dim() != 1 or not work.is_contiguous():
        raise UsageError(f"work is {work.dtype} {list(work.shape)}; it has to be int8 [n]")
    if work.shape[0] < size:
        raise UsageError(f"work has {work.shape[0]} bytes, {size} are needed: see {how}")


def _one_device(*tensors: Tensor) -> None:
    places = sorted({str(tensor.device) for tensor in tensors})
    if len(places) > 1:
        raise UsageError(f"the tensors lie on {', '.join(places)}; move them to one device")


def check_next(near: Tensor, words: Tensor | None, scales: Tensor | None) -> None:
    """`UsageError` unless both are given or neither is, rows of one matrix beside `near`."""
    if words is None and scales is None:
        return
    if words is None or scales is None:
        raise UsageError("next_words and next_scales belong together; give both or neither")
    for name, given in (("next_words", words), ("next_scales", scales)):
        if given.dim() != 2 or not given.is_contiguous() or given.shape[0] != words.shape[0]:
            raise UsageError(
                f"{name} is {list(given.shape)} with strides {list(given.stride())}; it has to be "
                f"contiguous [{words.shape[0]}, n], as layout {GpuGemv.name} stores it"
            )
    _one_device(near, words, scales)


def check_qkv(
    x: Tensor,
    norm: Tensor,
    matrix: Matrix,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    work: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    next_words: Tensor | None = None,
    next_scales: Tensor | None = None,
) -> None:
    """Arguments of `norm_qkv_rope_store`; errors say which does not fit and what would."""
    check_next(x, next_words, next_scales)
    batch = _normed(x, norm, matrix)
    if q.dim() != 3 or keys.dim() not in (3, 4) or q.shape[2] % 2:
        raise UsageError(
            f"q is {list(q.shape)} and keys are {list(keys.shape)}; they have to be [B, H, hd] and "
            "[B, W, KV, hd] or, of all rings, [S, KV, hd], with an even hd"
        )
    size, groups = q.shape[2], keys.shape[-2]
    places = keys.shape[:1] if keys.dim() == 3 else (batch, keys.shape[1])
    expect("q", q, torch.float32, batch, q.shape[1], size)
    for name, given in (("keys", keys), ("values", values)):
        expect(name, given, torch.float32, *places, groups, size)
    if matrix.rows != (q.shape[1] + 2 * groups) * size:
        raise QuantizationError(
            f"the matrix has {matrix.rows} rows; {q.shape[1]} query heads and twice {groups} heads "
            f"of {size} take {(q.shape[1] + 2 * groups) * size}"
        )
    for name, given in (("cos", cos), ("sin", sin)):
        expect(name, given, torch.float32, batch, size // 2)
    if slots.dim() != 2 or slots.shape[1] < 1:
        raise UsageError(f"slots are {list(slots.shape)}; they have to be [B, k + 1]")
    expect("slots", slots, torch.int32, batch, slots.shape[1])
    if keys.numel() >= 2**31:
        raise UnsupportedError(f"a ring of {keys.numel()} numbers is too large for 32-bit offsets")
    _scratch(work, qkv_work(matrix.rows, matrix.columns, batch), "plans.qkv_work")
    _one_device(x, norm, matrix.words, matrix.lane_scales, cos, sin, slots, work, q, keys, values)


def check_residual(
    codes: Tensor,
    factors: Tensor,
    matrix: Matrix,
    x: Tensor,
    next_words: Tensor | None = None,
    next_scales: Tensor | None = None,
) -> None:
    """Arguments of `gemv_residual`; errors say which does not fit and what would."""
    check_next(x, next_words, next_scales)
    check_matrix(matrix)
    batch = _vectors("codes", codes)
    expect("codes", codes, torch.int8, batch, matrix.columns)
    expect("factors", factors, torch.float32, batch, matrix.columns // GROUP)
    expect("x", x, torch.float32, batch, matrix.rows)
    _one_device(codes, factors, matrix.words, matrix.lane_scales, x)


def check_gate_up(
    x: Tensor,
    norm: Tensor,
    matrix: Matrix,
    work: Tensor,
    codes: Tensor,
    factors: Tensor,
    next_words: Tensor | None = None,
    next_scales: Tensor | None = None,
) -> None:
    """Arguments of `norm_gate_up`; errors say which does not fit and what would."""
    check_next(x, next_words, next_scales)
    batch = _normed(x, norm, matrix)
    if matrix.rows % 2:
        raise QuantizationError(f"the matrix has {matrix.rows} rows; gates and ups are even")
    width, hidden = codes.shape[-1] if codes.dim() else 0, matrix.rows // 2
    if width % GROUP or width < hidden:
        raise UsageError(
            f"codes are {list(codes.shape)}; {hidden} results in whole groups of {GROUP} take at "
            f"least [{batch}, {-(-hidden // GROUP) * GROUP}]"
        )
    expect("codes", codes, torch.int8, batch, width)
    expect("factors", factors, torch.float32, batch, width // GROUP)
    _scratch(work, gate_up_work(matrix.rows, matrix.columns, batch), "plans.gate_up_work")
    _one_device(x, norm, matrix.words, matrix.lane_scales, work, codes, factors)
