"""What operators that return tensors take: norms, `action_pack`, `quantize_int8_g32`, `gemv_*`. No
triton.

As in `checks_heads`, the launchers, the computations on the CPU and those on Meta all ask here: a
kernel reads and writes by these sizes, whatever memory there is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wmrt.core.errors import QuantizationError, UsageError
from wmrt.kernels.triton.checks_heads import WIDEST, together
from wmrt.kernels.triton.fused_checks import Matrix, check_matrix
from wmrt.quant.activations import GROUP
from wmrt.quant.layouts.base import STEP

#: Of `wmrt.model.action_quant`, which is a floor up: values of a group of a packed chunk.
ACTIONS = 16
#: Most groups of a chunk: its values lie in the registers of one program.
MOST_GROUPS = 256


def rms_norm(x: Tensor, weight: Tensor) -> tuple[int, int]:
    """Rows and K of x float[..., K] and a weight float32[K]; `UsageError` where they do not fit."""
    width = x.shape[-1] if x.dim() else 0
    if not x.is_floating_point() or not x.is_contiguous() or not 0 < width <= WIDEST:
        raise UsageError(
            f"x is {x.dtype} {list(x.shape)}; RMSNorm takes contiguous floats [..., K], K up to "
            f"{WIDEST}"
        )
    if weight.shape != (width,) or weight.dtype != torch.float32 or not weight.is_contiguous():
        raise UsageError(
            f"the weight is {weight.dtype} {list(weight.shape)}; it has to be float32 [{width}]"
        )
    together(x=x, weight=weight)
    return x.numel() // width, width


def padded(width: int, padded_to: int) -> int:
    """``width`` rounded up to a multiple of ``padded_to``; `UsageError` unless that is whole groups
    and the row still fits one program."""
    if padded_to <= 0 or padded_to % GROUP:
        raise UsageError(f"padded_to={padded_to}: a multiple of {GROUP}")
    wide = -(-width // padded_to) * padded_to
    if wide > WIDEST:
        raise UsageError(
            f"padded_to={padded_to} makes rows of {wide}; RMSNorm takes up to {WIDEST}"
        )
    return wide


def action_pack(chunks: Tensor) -> tuple[int, int]:
    """Number of chunks float32[..., H, A] and groups of one; `UsageError` where they do not fit."""
    shape = chunks.shape
    if chunks.dtype != torch.float32 or chunks.dim() < 2 or not chunks.is_contiguous():
        raise UsageError(
            f"chunks are {chunks.dtype} {list(shape)}, not contiguous float32 [.., H, A]"
        )
    values = shape[-2] * shape[-1]
    groups = -(-values // ACTIONS)
    if not 0 < groups <= MOST_GROUPS:
        raise UsageError(
            f"a chunk of {shape[-2]} x {shape[-1]} values; 1 to {ACTIONS * MOST_GROUPS} are packed"
        )
    return chunks.numel() // values, groups


def quantized(x: Tensor, width: int) -> None:
    """`UsageError` unless x is float[B, K], any strides, and its int8 codes can be [B, width]."""
    if x.dim() != 2 or not x.is_floating_point() or x.shape[1] < 1:
        raise UsageError(f"x is {x.dtype} {list(x.shape)}; int8 codes are of floats [B, K]")
    if width < x.shape[1] or width % GROUP:
        raise UsageError(
            f"width={width} for {x.shape[1]} columns: a multiple of {GROUP}, at least as many"
        )


def product(x: Tensor, factors: Tensor | None, words: Tensor, scales: Tensor, format: str) -> None:
    """x times a weight in layout ``gpu_gemv``: int8[B, K] with factors float32[B, K / 32], or
    float[B, K - 255 to K] without, K being the columns of `words`.

    Raises:
        QuantizationError: tensors that do not fit together, or that the layout does not store.
        UnsupportedError: a format without kernels, or more words than 32-bit offsets reach.
    """
    matrix = Matrix(words, scales, format, 1.0)
    check_matrix(matrix)
    columns = matrix.columns
    if factors is None:
        fits = x.dim() == 2 and x.is_floating_point()
        if not fits or not columns - STEP < x.shape[1] <= columns:
            raise QuantizationError(
                f"x must be float [B, {columns - STEP + 1}] to [B, {columns}], got {x.dtype} "
                f"{list(x.shape)}"
            )
    else:
        _dense("x", x, torch.int8, (columns,))
        _dense("activation scales", factors, torch.float32, (columns // GROUP,), x.shape[0])
    places = sorted({str(t.device) for t in (x, words, scales, factors) if t is not None})
    if len(places) > 1:
        raise QuantizationError(f"the tensors lie on {', '.join(places)}; move them to one device")


def _dense(
    name: str, given: Tensor, dtype: torch.dtype, row: Sequence[int], batch: int | None = None
) -> None:
    rows = (given.shape[0] if given.dim() else 0) if batch is None else batch
    if given.dtype != dtype or list(given.shape) != [rows, *row] or not given.is_contiguous():
        first = "B" if batch is None else batch
        loose = "" if given.is_contiguous() else f" with strides {given.stride()}"
        raise QuantizationError(
            f"{name} must be contiguous {dtype} [{first}, {row[0]}], got {given.dtype} "
            f"{list(given.shape)}{loose}"
        )
